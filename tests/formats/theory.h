// The error each storage type can reach on unit Gaussian values, from double-precision codecs that share
// nothing with src/formats: scales are not rounded to f16, searches are denser. Values behind the theory
// column of list.def.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/tcq_table.h"

namespace kvasir::theory {

// The types made of blocks that know nothing of one another; head-wide types have a test of their own.
inline std::vector<formats::Format> block_formats() {
  std::vector<formats::Format> out;
  for (const formats::Format& format : formats::all())
    if (!format.head_wide()) out.push_back(format);
  return out;
}

// Unit Gaussians by Box-Muller from splitmix64.
inline std::vector<double> gaussians(uint64_t seed, size_t n) {
  const auto next = [&seed] {
    uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  };
  std::vector<double> out(n);
  for (size_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(next())), angle = 6.283185307179586 * next();
    out[i] = radius * std::cos(angle);
    if (i + 1 < n) out[i + 1] = radius * std::sin(angle);
  }
  return out;
}

// Error of one block of n values.
struct Levels {
  std::vector<double> values;  // ascending
  double nearest(double v) const {
    const auto at = std::lower_bound(values.begin(), values.end(), v);
    if (at == values.begin()) return values.front();
    if (at == values.end()) return values.back();
    return v - *(at - 1) <= *at - v ? *(at - 1) : *at;
  }
};

inline Levels integers(int low, int high) {
  Levels levels;
  for (int v = low; v <= high; ++v) levels.values.push_back(v);
  return levels;
}

inline Levels iq4() { return {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}}; }

// x ~ s l - m, the best of `starts` scales each followed by alternation; m fixed to 0 unless with_min.
struct Fit {
  double s = 0, m = 0, error = std::numeric_limits<double>::infinity();
};

inline double fit_error(const Levels& levels, const double* x, int n, double s, double m) {
  double error = 0;
  for (int i = 0; i < n; ++i) {
    const double difference = x[i] - (s == 0 ? 0 : s * levels.nearest((x[i] + m) / s)) + m;
    error += difference * difference;
  }
  return error;
}

inline Fit refine(const Levels& levels, const double* x, int n, Fit fit, bool with_min,
                  bool min_not_negative) {
  for (int pass = 0; pass < 20; ++pass) {
    double w = n, l1 = 0, l2 = 0, x1 = 0, xl = 0;
    for (int i = 0; i < n; ++i) {
      const double l = levels.nearest((x[i] + fit.m) / fit.s);
      l1 += l, l2 += l * l, x1 += x[i], xl += x[i] * l;
    }
    Fit next = fit;
    const double determinant = w * l2 - l1 * l1;
    if (with_min && determinant > 1e-9) {
      next.s = (w * xl - x1 * l1) / determinant;
      next.m = (l1 * xl - l2 * x1) / determinant;
    }
    if (!with_min || (min_not_negative && next.m < 0)) next.m = 0, next.s = l2 > 0 ? xl / l2 : 0;
    if (next.s == 0) return fit;
    next.error = fit_error(levels, x, n, next.s, next.m);
    if (!(next.error < fit.error * (1 - 1e-12))) return fit;
    fit = next;
  }
  return fit;
}

inline Fit best_symmetric(const Levels& levels, const double* x, int n, int starts) {
  double largest = 0;
  for (int i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  Fit best;
  for (int k = 0; k < starts; ++k) {
    const double stretch = 0.6 + 0.6 * (k + 0.5) / starts;
    for (double end : {levels.values.front(), levels.values.back()}) {
      Fit fit{largest / end * stretch, 0, 0};
      fit.error = fit_error(levels, x, n, fit.s, 0);
      fit = refine(levels, x, n, fit, false, false);
      if (fit.error < best.error) best = fit;
    }
  }
  return best;
}

inline Fit best_with_min(const Levels& levels, const double* x, int n, int starts, bool min_not_negative) {
  double low = *std::min_element(x, x + n);
  const double high = *std::max_element(x, x + n);
  if (min_not_negative) low = std::min(low, 0.0);
  Fit best;
  for (int k = 0; k < starts; ++k) {
    const double stretch = 0.6 + 0.5 * (k + 0.5) / starts;
    for (double place : {0.0, 0.5, 1.0}) {
      // The grid shrinks towards one end, the middle or the other end of the block's range.
      Fit fit{(high - low) * stretch / levels.values.back(), -(low + (high - low) * (1 - stretch) * place),
              0};
      if (min_not_negative && fit.m < 0) fit.m = 0;
      fit.error = fit_error(levels, x, n, fit.s, fit.m);
      fit = refine(levels, x, n, fit, true, min_not_negative);
      if (fit.error < best.error) best = fit;
    }
  }
  return best;
}

// Normal equations of a superblock's one or two f16 scales, gathered over its sub-blocks.
struct Pair {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  void add(const Levels& levels, const double* x, int n, double d, double dmin, double S, double M) {
    if (S == 0) return;
    for (int i = 0; i < n; ++i) {
      const double a = S * levels.nearest((x[i] + dmin * M) / (d * S));
      aa += a * a, ab += a * M, bb += M * M, ax += a * x[i], bx += M * x[i];
    }
  }
};

// Error of a superblock x ~ d S l with S integers in [scale_low, scale_high]: the best of several d,
// alternated.
inline double symmetric_superblock(const Levels& levels, int scale_low, int scale_high, int length,
                                   const double* x, int starts) {
  const int subs = 256 / length;
  double s[16], largest = 0;
  for (int j = 0; j < subs; ++j) {
    s[j] = best_symmetric(levels, x + j * length, length, starts).s;
    if (std::fabs(s[j]) > std::fabs(largest)) largest = s[j];
  }
  double best = std::numeric_limits<double>::infinity();
  for (int k = -1; k <= 1; ++k) {
    double d = largest / (scale_low + 0.25 * k), last = std::numeric_limits<double>::infinity();
    for (int pass = 0; pass < 6; ++pass) {
      double error = 0;
      Pair pair;
      for (int j = 0; j < subs; ++j) {
        double here = std::numeric_limits<double>::infinity(), pick = 0;
        for (int step = -3; step <= 4; ++step) {
          const double S = std::clamp(std::floor(s[j] / d) + step, double(scale_low), double(scale_high));
          const double e = fit_error(levels, x + j * length, length, d * S, 0);
          if (e < here) here = e, pick = S;
        }
        error += here;
        pair.add(levels, x + j * length, length, d, 0, pick, 0);
      }
      best = std::min(best, error);
      if (!(error < last) || pair.aa == 0) break;
      last = error;
      d = pair.ax / pair.aa;
    }
  }
  return best;
}

// Error of a superblock x ~ d S l - dmin M, S and M integers in [0, high].
inline double min_superblock(int n_levels, int high, int length, const double* x, int starts) {
  const Levels levels = integers(0, n_levels - 1);
  const int subs = 256 / length;
  Fit fit[16];
  double largest_s = 0, largest_m = 0;
  for (int j = 0; j < subs; ++j) {
    fit[j] = best_with_min(levels, x + j * length, length, starts, true);
    largest_s = std::max(largest_s, fit[j].s);
    largest_m = std::max(largest_m, fit[j].m);
  }
  double d = largest_s / high, dmin = largest_m / high, last = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < 6; ++pass) {
    double error = 0;
    Pair pair;
    for (int j = 0; j < subs; ++j) {
      double here = std::numeric_limits<double>::infinity(), pick_S = 0, pick_M = 0;
      for (int ds = -1; ds <= 2; ++ds)
        for (int dm = -1; dm <= 2; ++dm) {
          const double S = std::clamp(std::floor(fit[j].s / d) + ds, 0.0, double(high));
          const double M = std::clamp(std::floor(fit[j].m / dmin) + dm, 0.0, double(high));
          const double e = fit_error(levels, x + j * length, length, d * S, dmin * M);
          if (e < here) here = e, pick_S = S, pick_M = M;
        }
      error += here;
      pair.add(levels, x + j * length, length, d, dmin, pick_S, pick_M);
    }
    const double determinant = pair.aa * pair.bb - pair.ab * pair.ab;
    if (!(error < last)) break;
    last = error;
    if (!(determinant > 0)) break;
    d = (pair.ax * pair.bb - pair.bx * pair.ab) / determinant;
    dmin = (pair.ax * pair.ab - pair.aa * pair.bx) / determinant;
    if (!(d > 0 && dmin > 0)) break;
  }
  return last;
}

inline double float_rounding(double x, int mantissa_bits) {
  int exponent;
  const double fraction = std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, mantissa_bits + 1);
  const double difference = x - std::ldexp(std::nearbyint(fraction * step) / step, exponent);
  return difference * difference;
}

inline double absmax_block(int divisor, int low, int high, bool is_signed, const double* x) {
  double largest = 0;
  for (int i = 0; i < 32; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  return fit_error(integers(low, high), x, 32, (is_signed ? -largest : std::fabs(largest)) / divisor, 0);
}

// Normalised mean squared error of the named type on x; x.size() is a multiple of 256. `starts` trial scales
// a block.
// Levels on a block brought to unit mean square, then the best scale for the chosen levels.
inline double sphere_block(const std::vector<double>& positive, int n, const double* x) {
  Levels levels;
  for (double level : positive) levels.values.push_back(-level), levels.values.push_back(level);
  std::sort(levels.values.begin(), levels.values.end());
  double squares = 0, xl = 0, l2 = 0, error = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  std::vector<double> chosen;
  for (int i = 0; i < n; ++i) chosen.push_back(levels.nearest(x[i] / std::sqrt(squares / n)));
  for (int i = 0; i < n; ++i) xl += x[i] * chosen[size_t(i)], l2 += chosen[size_t(i)] * chosen[size_t(i)];
  for (int i = 0; i < n; ++i) error += std::pow(x[i] - xl / l2 * chosen[size_t(i)], 2);
  return error;
}

// Signs of 256 projections of 128 values and the norm, read back as the unbiased estimate.
inline double sketch_block(const double* x) {
  static const std::vector<double> projection = gaussians(77, 128 * 256);
  double norm = 0, error = 0;
  for (int i = 0; i < 128; ++i) norm += x[i] * x[i];
  std::vector<double> back(128);
  for (int j = 0; j < 256; ++j) {
    double dot = 0;
    for (int i = 0; i < 128; ++i) dot += x[i] * projection[size_t(i * 256 + j)];
    for (int i = 0; i < 128; ++i)
      back[size_t(i)] += dot > 0 ? projection[size_t(i * 256 + j)] : -projection[size_t(i * 256 + j)];
  }
  for (int i = 0; i < 128; ++i)
    error += std::pow(x[i] - std::sqrt(3.14159265358979 / 2) / 256 * std::sqrt(norm) * back[size_t(i)], 2);
  return error;
}

// The cheapest path of 128 values through the trellis of tbq3_tcq with free ends, then the best scale.
inline double trellis_block(const double* x) {
  const auto& levels = formats::own_tcq_table().level;
  double norm = 0, xl = 0, l2 = 0, error = 0;
  for (int i = 0; i < 128; ++i) norm += x[i] * x[i];
  norm = std::sqrt(norm);
  std::vector<double> cost(512), next(512);
  std::vector<std::vector<int>> from(128, std::vector<int>(512));
  for (size_t t = 0; t < 128; ++t) {
    for (size_t s = 0; s < 512; ++s) {
      size_t best = s % 64 * 8;
      for (size_t p = best + 1; p % 8 != 0; ++p)
        if (cost[p] < cost[best]) best = p;
      from[t][s] = int(best);
      next[s] = cost[best] + std::pow(x[t] / norm - levels[s], 2);
    }
    cost = next;
  }
  std::vector<double> chosen(128);
  size_t s = size_t(std::min_element(cost.begin(), cost.end()) - cost.begin());
  for (size_t t = 128; t-- > 0; s = size_t(from[t][s])) chosen[t] = levels[s];
  for (size_t i = 0; i < 128; ++i) xl += x[i] * chosen[i], l2 += chosen[i] * chosen[i];
  for (size_t i = 0; i < 128; ++i) error += std::pow(x[i] - xl / l2 * chosen[i], 2);
  return error;
}

inline double nmse(const std::string& name, const std::vector<double>& x, int starts) {
  double error = 0, energy = 0;
  for (double v : x) energy += v * v;
  for (size_t i = 0; i < x.size(); i += 256) {
    const double* at = &x[i];
    if (name == "q2_k") error += min_superblock(4, 15, 16, at, starts);
    if (name == "q3_k") error += symmetric_superblock(integers(-4, 3), -32, 31, 16, at, starts);
    if (name == "q4_k") error += min_superblock(16, 63, 32, at, starts);
    if (name == "q5_k") error += min_superblock(32, 63, 32, at, starts);
    if (name == "q6_k") error += symmetric_superblock(integers(-32, 31), -128, 127, 16, at, starts);
    if (name == "iq4_xs") error += symmetric_superblock(iq4(), -32, 31, 32, at, starts);
    if (name == "f16" || name == "bf16")
      for (int j = 0; j < 256; ++j) error += float_rounding(at[j], name == "f16" ? 10 : 7);
    for (int j = 0; j < 256; j += 128) {
      if (name == "q4_polar")
        error += sphere_block({0.131757782, 0.397897103, 0.672392117, 0.962640978, 1.279739752, 1.643041510,
                               2.093562707, 2.754354807},
                              128, at + j);
      if (name == "qjl1_256") error += sketch_block(at + j);
      if (name == "tbq3_tcq") error += trellis_block(at + j);
    }
    for (int j = 0; j < 256; j += 32) {
      if (name == "tbq3_0") error += sphere_block({0.2450942, 0.7560053, 1.3439093, 2.1519457}, 32, at + j);
      if (name == "tbq4_0")
        error += sphere_block(
            {0.1283243, 0.3878412, 0.6564307, 0.9419147, 1.2557391, 1.6175243, 2.0685055, 2.7321365}, 32,
            at + j);
      if (name == "q8_0") error += absmax_block(127, -127, 127, false, at + j);
      if (name == "q4_0") error += absmax_block(8, -8, 7, true, at + j);
      if (name == "q5_0") error += absmax_block(16, -16, 15, true, at + j);
      if (name == "q4_1") error += best_with_min(integers(0, 15), at + j, 32, starts, false).error;
      if (name == "q5_1") error += best_with_min(integers(0, 31), at + j, 32, starts, false).error;
      if (name == "iq4_nl") error += best_symmetric(iq4(), at + j, 32, starts).error;
    }
  }
  return error / energy;
}

}  // namespace kvasir::theory
