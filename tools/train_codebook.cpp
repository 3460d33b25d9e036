// train-codebook levels: the level tables of the head-wide types, by recipe. (train_trellis.cpp has the
// others.)
//
// A coordinate of a uniformly random vector of norm sqrt(d) in d dimensions has the density
//   p(x) ~ (1 - x^2 / d)^((d - 3) / 2),  |x| < sqrt(d).
// The table holds the levels with the least mean squared error for it (Lloyd-Max: boundaries are midpoints,
// levels are the means of their cells), in double precision until no level moves by 1e-13. Levels are
// symmetric, so only the positive half is kept.
//
// The error of a row also has its least-squares scale. With c(x) the level, e = x - c and D = E[e^2], a scale
// of its own for each row of d values takes away, to first order in 1/d,
//   (Var[c e] - Cov[c e, x^2]^2 / Var[x^2]) / (d (1 - D))
// (the second term because sum x^2 is fixed on the sphere).
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include "train_trellis.h"

namespace {

constexpr int kBits[] = {2, 3, 4};
constexpr int kHeadDims[] = {64, 128, 256, 512};

// Integrals of p over [a, b] of f(x), by Gauss-Legendre with 5 nodes on `kPieces` pieces.
class Sphere {
 public:
  explicit Sphere(int d) : d_(d), total_(1) {
    total_ = integral(-end(), end(), [](double) { return 1.0; });
  }
  double end() const { return std::sqrt(double(d_)); }
  template <typename Function>
  double integral(double a, double b, const Function& f) const {
    constexpr int kPieces = 64;
    constexpr double kNodes[] = {0, 0.5384693101056831, -0.5384693101056831, 0.9061798459386640,
                                 -0.9061798459386640};
    constexpr double kWeights[] = {0.5688888888888889, 0.4786286704993665, 0.4786286704993665,
                                   0.2369268850561891, 0.2369268850561891};
    const double half = (b - a) / (2 * kPieces);
    double sum = 0;
    for (int i = 0; i < kPieces; ++i)
      for (int k = 0; k < 5; ++k) {
        const double x = a + half * (2 * i + 1 + kNodes[k]);
        sum += kWeights[k] * std::pow(1 - x * x / d_, (d_ - 3) / 2.0) * f(x);
      }
    return sum * half / total_;
  }

 private:
  int d_;
  double total_;
};

struct Codebook {
  std::vector<double> levels;  // the positive half, ascending
  double nmse;
};

double upper(const Sphere& p, const std::vector<double>& levels, size_t i) {
  return i + 1 < levels.size() ? (levels[i] + levels[i + 1]) / 2 : p.end();
}

std::vector<double> lloyd_max(const Sphere& p, int bits) {
  std::vector<double> levels(size_t(1) << (bits - 1));
  for (size_t i = 0; i < levels.size(); ++i) levels[i] = (double(i) + 0.5) * 2.8 / double(levels.size());
  for (double moved = 1; moved > 1e-13;) {
    std::vector<double> next(levels.size());
    moved = 0;
    for (size_t i = 0; i < levels.size(); ++i) {
      const double low = i ? upper(p, levels, i - 1) : 0, high = upper(p, levels, i);
      next[i] = p.integral(low, high, [](double x) { return x; }) /
                p.integral(low, high, [](double) { return 1.0; });
      moved = std::max(moved, std::fabs(next[i] - levels[i]));
    }
    levels = next;
  }
  return levels;
}

Codebook train(int bits, int d) {
  const Sphere p(d);
  Codebook book{lloyd_max(p, bits), 0};
  double mse = 0, ce = 0, ce_ce = 0, ce_xx = 0, xx_xx = 0;
  for (size_t i = 0; i < book.levels.size(); ++i) {
    const double c = book.levels[i], low = i ? upper(p, book.levels, i - 1) : 0,
                 high = upper(p, book.levels, i);
    const auto twice = [&](const auto& f) { return 2 * p.integral(low, high, f); };
    mse += twice([&](double x) { return (x - c) * (x - c); });
    ce += twice([&](double x) { return c * (x - c); });
    ce_ce += twice([&](double x) { return c * c * (x - c) * (x - c); });
    ce_xx += twice([&](double x) { return c * (x - c) * x * x; });
    xx_xx += twice([&](double x) { return x * x * x * x; });
  }
  const double covariance = ce_xx - ce, variance = xx_xx - 1;
  book.nmse = mse - (ce_ce - ce * ce - covariance * covariance / variance) / (d * (1 - mse));
  return book;
}

void print_header() {
  fmt::print(
      "// Written by train-codebook levels; do not edit. Levels of least mean squared error for a coordinate "
      "of a\n"
      "// uniformly random vector of norm sqrt(d) in d dimensions, the positive half, for each b and d.\n"
      "#pragma once\n\nnamespace kvasir::formats {{\n\n"
      "template <int kBits>\n"
      "struct HeadWideLevels {{\n"
      "  int head_dim;\n"
      "  float positive[1 << (kBits - 1)];  // ascending; the negative half mirrors it\n"
      "  double nmse;                       // with a least-squares scale for each row\n"
      "}};\n\n"
      "// clang-format off\n");
  for (int bits : kBits) {
    fmt::print("inline constexpr HeadWideLevels<{}> kHeadWideLevels{}[] = {{\n", bits, bits);
    for (int d : kHeadDims) {
      const Codebook book = train(bits, d);
      fmt::print("    {{{}, {{", d);
      for (size_t i = 0; i < book.levels.size(); ++i) fmt::print("{}{:.8f}f", i ? ", " : "", book.levels[i]);
      fmt::print("}}, {:.8f}}},\n", book.nmse);
    }
    fmt::print("}};\n");
  }
  fmt::print("// clang-format on\n\n}}  // namespace kvasir::formats\n");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view arg = argc > 1 ? argv[1] : "";
  if (arg == "--help" || arg == "-h") {
    fmt::print(
        "usage: train-codebook levels > src/formats/head_wide_levels.h\n"
        "       train-codebook trellis > src/formats/trellis_tables.h    (some minutes)\n"
        "       train-codebook tcq > src/formats/tcq_levels.h            (some minutes)\n\n"
        "Prints the level tables of tbq2_h, tbq3_h and tbq4_h for head sizes 64, 128, 256 and 512: "
        "Lloyd-Max\n"
        "on the density of one coordinate of a random vector on the d-sphere, and the error each reaches;\n"
        "or the tables of tbq2_ht, tbq3_ht and tbq4_ht, or that of tbq3_tcq: generalised Lloyd over their "
        "trellis's\nbest paths.\n");
    return 0;
  }
  if (argc != 2 || (arg != "levels" && arg != "trellis" && arg != "tcq")) {
    fmt::print(stderr, "train-codebook: '{}': give levels, trellis or tcq; --help says more\n", arg);
    return 2;
  }
  arg == "levels" ? print_header() : arg == "tcq" ? print_tcq_table() : print_trellis_tables();
  return 0;
}
