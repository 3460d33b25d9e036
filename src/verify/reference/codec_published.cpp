// The block types of the public fork, from the published description: tbq3_0, tbq4_0, q4_polar and qjl1_256,
// with least-squares scales.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "verify/reference/codec_scaled.h"
#include "verify/reference/half.h"

namespace kvasir::verify::reference {
namespace {

// Mirrors the positive half.
std::vector<double> mirrored(const std::vector<double>& positive) {
  std::vector<double> all;
  for (size_t i = positive.size(); i > 0; --i) all.push_back(-positive[i - 1]);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

// Lloyd iterations for N(0, 1) from the given positive levels: each moves to the mean of its cell.
std::vector<double> lloyd_normal(std::vector<double> level, int rounds) {
  const auto tail = [](double x) { return 0.5 * std::erfc(x / std::numbers::sqrt2); };
  const auto density = [](double x) {
    return std::isinf(x) ? 0 : std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  };
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> next;
    double low = 0;
    for (size_t i = 0; i < level.size(); ++i) {
      const double high = i + 1 < level.size() ? (level[i] + level[i + 1]) / 2 : HUGE_VAL;
      next.push_back((density(low) - density(high)) / (tail(low) - tail(high)));
      low = high;
    }
    level = next;
  }
  return level;
}

// To the digits that were published, so that near-ties fall as they do there.
std::vector<double> published(std::vector<double> levels, double digits) {
  for (double& level : levels) level = std::round(level * digits) / digits;
  return levels;
}

// Midpoints of n equal cells of [0, end].
std::vector<double> cell_middles(int n, double end) {
  std::vector<double> middles;
  for (int i = 0; i < n; ++i) middles.push_back((i + 0.5) * end / n);
  return middles;
}

// tbq3_0, tbq4_0: 32 values rotated by H (s . x) / sqrt(32); f16 scale, then codes: 3 bits each in a
// little-endian stream, or nibbles j and j + 16 in byte j. A scale of 0 decodes to zeros.
class Tbq0Codec final : public ScaledCodec {
 public:
  Tbq0Codec(std::string_view name, int bits) : name_(name), bits_(bits) {
    // Three bits: the optimum for N(0, 1). Four bits: what was published, which had not converged.
    levels_ = mirrored(bits == 3 ? published(lloyd_normal(cell_middles(4, 2.6), 3000), 1e7)
                                 : std::vector<double>{0.1283243, 0.3878412, 0.6564307, 0.9419147, 1.2557391,
                                                       1.6175243, 2.0685055, 2.7321365});
  }
  std::string_view name() const override { return name_; }
  size_t row_bytes(int d) const override { return size_t(d / 32) * bytes(); }
  bool rotated() const override { return true; }
  void to_basis(Side, double* x, int d) const override {
    for (int b = 0; b < d; b += 32) {
      flip(x + b);
      hadamard(x + b, 32);
    }
  }
  void from_basis(Side, double* r, int d) const override {
    for (int b = 0; b < d; b += 32) {
      hadamard(r + b, 32);
      flip(r + b);
    }
  }

 protected:
  bool shares_in_15_bits() const override { return true; }
  int group(int) const override { return 32; }
  const std::vector<double>& levels_of(int) const override { return levels_; }
  int code(const std::byte* row, int, int i) const override {
    const std::byte* codes = row + size_t(i / 32) * bytes() + 2;
    return bits_ == 3 ? bits_at(codes, i % 32 * 3, 3) : bits_at(codes, i % 16 * 8 + i % 32 / 16 * 4, 4);
  }
  void set_code(std::byte* row, int, int i, int code) const override {
    std::byte* codes = row + size_t(i / 32) * bytes() + 2;
    bits_ == 3 ? put_bits(codes, i % 32 * 3, 3, code)
               : put_bits(codes, i % 16 * 8 + i % 32 / 16 * 4, 4, code);
  }
  uint16_t scale(const std::byte* row, int, int g) const override {
    return u16_at(row + size_t(g) * bytes());
  }
  void set_scale(std::byte* row, int, int g, uint16_t scale) const override {
    put_u16(row + size_t(g) * bytes(), scale);
  }
  double unit_before(const double* x, int) const override { return root_of_squares(x, 32) / std::sqrt(32.0); }
  double unit_given(const double* x, double stored, int d) const override {
    return stored == 0 ? 0 : unit_before(x, d);
  }
  double ideal_scale(const double* x, const std::vector<int>& codes, const std::vector<double>& levels,
                     int) const override {
    return least_squares(x, codes, levels);
  }
  bool clears(uint16_t stored) const override { return (stored & 0x7fff) == 0; }

 private:
  static void flip(double* x) {
    constexpr std::string_view kSigns = "+-++-+--++-+--+--++-+--++-+--+-+";
    for (size_t i = 0; i < 32; ++i)
      if (kSigns[i] == '-') x[i] = -x[i];
  }
  size_t bytes() const { return size_t(2 + 4 * bits_); }
  std::string_view name_;
  int bits_;
  std::vector<double> levels_;
};

// q4_polar: 128 values rotated by H / sqrt(128), no signs; f16 norm d, then nibbles 2 i and 2 i + 1 in byte
// i, then 16 bytes of which bit 0 is used: the side of the plane with normal g on which the rest lies. r = d
// / sqrt(128) level.
class PolarCodec final : public ScaledCodec {
 public:
  PolarCodec() {
    for (const double level : mirrored(published(lloyd_normal(cell_middles(8, 4), 100), 1e9)))
      levels_.push_back(level / std::sqrt(128.0));
    uint32_t x = 42;
    for (double& sign : signs_) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
      sign = x % 2 ? 1 : -1;
    }
  }
  std::string_view name() const override { return "q4_polar"; }
  size_t row_bytes(int d) const override { return size_t(d / 128 * 82); }
  bool rotated() const override { return true; }
  void to_basis(Side, double* x, int d) const override {
    for (int b = 0; b < d; b += 128) hadamard(x + b, 128);
  }
  void from_basis(Side side, double* r, int d) const override { to_basis(side, r, d); }
  // The bit moves every level by half of 1 / sqrt(128) along its sign, in the levels' unit.
  void decode_residual(const std::byte* row, int d, double* out) const override {
    decode(row, d, out);
    for (int i = 0; i < d; ++i) {
      const double side = bits_at(row + i / 128 * 82 + 66, 0, 1) ? 0.5 : -0.5;
      out[i] += from_f16(scale(row, d, i / 128)) / std::sqrt(128.0) * side / std::sqrt(128.0) *
                signs_[size_t(i % 128)];
    }
  }

 protected:
  int group(int) const override { return 128; }
  double level_unit() const override { return 1 / std::sqrt(128.0); }
  bool shares_in_15_bits() const override { return true; }
  const std::vector<double>& levels_of(int) const override { return levels_; }
  int code(const std::byte* row, int, int i) const override {
    return bits_at(row + i / 128 * 82 + 2, i % 128 * 4, 4);
  }
  void set_code(std::byte* row, int, int i, int code) const override {
    put_bits(row + i / 128 * 82 + 2, i % 128 * 4, 4, code);
  }
  uint16_t scale(const std::byte* row, int, int g) const override { return u16_at(row + g * 82); }
  void set_scale(std::byte* row, int, int g, uint16_t scale) const override { put_u16(row + g * 82, scale); }
  double unit_before(const double* x, int) const override { return root_of_squares(x, 128); }
  double unit_given(const double* x, double stored, int d) const override {
    return stored == 0 ? 0 : unit_before(x, d);
  }
  double ideal_scale(const double* x, const std::vector<int>& codes, const std::vector<double>& levels,
                     int) const override {
    return least_squares(x, codes, levels);
  }
  bool clears(uint16_t stored) const override { return (stored & 0x7fff) == 0; }
  void finish(const double* x, int d, int g, std::byte* row) const override {
    row[g * 82 + 66] = std::byte(side(x, d, g, row) >= 0);
  }
  int other_faults(const double* x, int d, int g, const std::byte* row) const override {
    const std::byte* residual = row + g * 82 + 66;
    int faults = 0;
    for (int bit = 1; bit < 128; ++bit) faults += bits_at(residual, bit, 1);
    const double which = side(x, d, g, row);
    if (scale(row, d, g) != 0 && std::fabs(which) > 1e-4) faults += bits_at(residual, 0, 1) != (which >= 0);
    return faults;
  }

 private:
  // In units of the levels for N(0, 1).
  double side(const double* x, int d, int g, const std::byte* row) const {
    const double norm = unit_before(x, d);
    double sum = 0;
    for (int i = 0; norm > 0 && i < 128; ++i)
      sum +=
          (x[i] / norm - levels_[size_t(code(row, d, g * 128 + i))]) * std::sqrt(128.0) * signs_[size_t(i)];
    return sum;
  }
  std::vector<double> levels_;
  std::array<double, 128> signs_{};
};

// qjl1_256, keys only: 128 values as signs of 256 random projections, least significant bit first, then their
// norm in bf16. P by rows from splitmix64 of 42 ^ 0xC0FFEE1234567890, u = ((x >> 11) | 1) 2^-53, Box-Muller,
// cosine first.
class QjlCodec final : public Codec {
 public:
  QjlCodec() : projection_(128 * 256), columns_(128 * 256) {
    uint64_t state = 42 ^ 0xc0ffee1234567890u;
    const auto uniform = [&] { return double(splitmix64(state) >> 11 | 1) * 0x1p-53; };
    for (size_t i = 0; i < projection_.size(); i += 2) {
      const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
      projection_[i] = radius * std::cos(angle);
      projection_[i + 1] = radius * std::sin(angle);
    }
    for (size_t i = 0; i < projection_.size(); ++i) columns_[i % 256 * 128 + i / 256] = projection_[i];
  }
  std::string_view name() const override { return "qjl1_256"; }
  // 256 terms whose magnitudes add up to 13 times what is left: six deviations (bounds.h).
  double decode_error() const override { return 13 * 6 * 16 * 0x1p-24; }
  size_t row_bytes(int d) const override { return size_t(d / 128 * 34); }
  // What is rounded is the sketch of the query: each of its 256 values counts sqrt(pi/2) / 256 times the norm
  // that was stored, which is about that of the row read back, or less.
  double query_top(const double* q, int d) const override {
    double top = 0;
    for (int b = 0; b < d; b += 128)
      for (const double s : sketch_of(q + b)) top = std::max(top, std::fabs(s));
    return top * std::sqrt(std::numbers::pi / 2) / 256 * 16;
  }
  void decode(const std::byte* row, int d, double* out) const override {
    for (int b = 0; b < d / 128; ++b, row += 34, out += 128) {
      std::fill(out, out + 128, 0.0);
      for (int j = 0; j < 256; ++j) {
        const double sign = bits_at(row, j, 1) ? 1 : -1;
        const double* column = &columns_[size_t(j) * 128];
        for (int i = 0; i < 128; ++i) out[i] += sign * column[i];
      }
      const double factor = std::sqrt(std::numbers::pi / 2) / 256 * from_bf16(u16_at(row + 32));
      for (int i = 0; i < 128; ++i) out[i] *= factor;
    }
  }
  void encode(const double* x, int d, std::byte* row) const override {
    std::memset(row, 0, row_bytes(d));
    for (int b = 0; b < d / 128; ++b, x += 128, row += 34) {
      const std::array<double, 256> sketch = sketch_of(x);
      for (int j = 0; j < 256; ++j) put_bits(row, j, 1, sketch[size_t(j)] > 0);
      put_u16(row + 32, to_bf16(root_of_squares(x, 128)));
    }
  }
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte*) const override {
    RowFaults faults;
    for (int b = 0; b < d / 128; ++b, x += 128, row += 34) {
      const double norm = root_of_squares(x, 128);
      const std::array<double, 256> sketch = sketch_of(x);
      for (int j = 0; j < 256; ++j) {
        const double s = sketch[size_t(j)];
        if (bits_at(row, j, 1) == (s > 0) || std::fabs(s) <= 0x1p-16 * norm) continue;
        ++faults.codes;
        faults.worst = std::max(faults.worst, std::fabs(s) / norm);
      }
      const double stored = from_bf16(u16_at(row + 32)),
                   step = norm > 0 ? std::ldexp(1.0, std::ilogb(norm) - 7) : 0;
      if (std::fabs(stored - norm) <= 0.5 * step + kScaleError * norm) continue;
      ++faults.scales;
      faults.scale_ulps = std::max(faults.scale_ulps, std::fabs(stored - norm) / step);
    }
    return faults;
  }

 private:
  std::array<double, 256> sketch_of(const double* x) const {
    std::array<double, 256> sums{};
    for (size_t i = 0; i < 128; ++i)
      for (size_t j = 0; j < 256; ++j) sums[j] += x[i] * projection_[i * 256 + j];
    return sums;
  }
  std::vector<double> projection_, columns_;  // [128][256], and [256][128]
};

}  // namespace

void add_published(std::vector<std::unique_ptr<Codec>>& list) {
  list.push_back(std::make_unique<Tbq0Codec>("tbq3_0", 3));
  list.push_back(std::make_unique<Tbq0Codec>("tbq4_0", 4));
  list.push_back(std::make_unique<PolarCodec>());
  list.push_back(std::make_unique<QjlCodec>());
}

}  // namespace kvasir::verify::reference
