// Bodies of search.h's functions, compiled once an instruction set by a file that defines
// KVASIR_SEARCH_NAMESPACE: the same arithmetic in the same order, so the same bits, only wider. Sixteen
// candidates run side by side, one a lane, and values one after another: no sum crosses lanes. Not for
// inclusion elsewhere.
#include <cmath>
#include <cstring>

#include "formats/rounding.h"
#include "formats/search_isa.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a compiled call here
#endif

namespace kvasir::formats {
namespace KVASIR_SEARCH_NAMESPACE {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(64)));

[[gnu::always_inline]] inline Lanes broadcast(float v) { return v - Lanes{}; }

// base + step * {0, 1, .., 15}
[[gnu::always_inline]] inline Lanes ramp(float base, float step) {
  const Lanes index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return base + index * step;
}

[[gnu::always_inline]] inline Lanes clamp_lanes(const Lanes& v, float low, float high) {
  const Lanes raised = v < low ? broadcast(low) : v;
  return raised > high ? broadcast(high) : raised;
}

// Nearest integers, ties to even, for |v| <= 2^22.
[[gnu::always_inline]] inline Lanes nearest(const Lanes& v) { return (v + 12582912.0f) - 12582912.0f; }

[[gnu::always_inline]] inline Lanes level_of(const Grid& grid, const Lanes& v) {
  if (!grid.codebook) return nearest(clamp_lanes(v, float(grid.low), float(grid.high)));
  Lanes level = broadcast(float(grid.codebook[0]));
  for (int k = 0; k < 15; ++k) {
    const float middle = 0.5f * float(grid.codebook[k] + grid.codebook[k + 1]);
    level += v >= middle ? broadcast(float(grid.codebook[k + 1] - grid.codebook[k])) : Lanes{};
  }
  return level;
}

// 1 / v where v is not 0, else 0.
[[gnu::always_inline]] inline Lanes inverse_lanes(const Lanes& v) {
  return v != 0.0f ? 1.0f / (v != 0.0f ? v : 1.0f + Lanes{}) : Lanes{};
}

inline int best_lane(const Lanes& v) {
  int best = 0;
  for (int k = 1; k < kLanes; ++k)
    if (v[k] > v[best]) best = k;
  return best;
}

inline void levels(const Grid& grid, const float* x, float inverse, int n, float* level) {
  for (int i = 0; i < n; i += kLanes) {
    Lanes v;
    std::memcpy(&v, x + i, sizeof v);
    v = level_of(grid, v * inverse);
    std::memcpy(level + i, &v, sizeof v);
  }
}

inline void levels_min(int n_levels, const float* x, float inverse, float m, int n, float* level) {
  for (int i = 0; i < n; i += kLanes) {
    Lanes v;
    std::memcpy(&v, x + i, sizeof v);
    v = nearest(clamp_lanes((v + m) * inverse, 0.0f, float(n_levels - 1)));
    std::memcpy(level + i, &v, sizeof v);
  }
}

// A scale and how much of sum w x^2 it explains.
struct ScaleTrial {
  float s = 0, gain = 0;
};

inline void try_scales(const Grid& grid, const float* x, const float* w, int n, const Lanes& inverse,
                       ScaleTrial& best) {
  Lanes wll{}, wxl{};
  for (int i = 0; i < n; ++i) {
    const Lanes level = level_of(grid, x[i] * inverse);
    const Lanes weighted = w[i] * level;
    wll += weighted * level;
    wxl += weighted * x[i];
  }
  const Lanes scale = wxl * inverse_lanes(wll);
  const Lanes gain = scale * wxl;
  const int k = best_lane(gain);
  if (gain[k] > best.gain) best = {scale[k], gain[k]};
}

inline float scale_fit(const Grid& grid, const Trials& trials, const float* x, const float* w, int n) {
  const float largest = signed_largest(x, n);
  ScaleTrial best;
  if (largest == 0) return 0;
  const float unit = 1.0f / largest;
  for (int batch = 0; batch < trials.batches; ++batch) {
    // The grid is longer on its negative side: try the largest value at either end.
    const float first = trials.first + trials.step * float(kLanes * batch);
    try_scales(grid, x, w, n, ramp((float(grid.low) - first) * unit, -trials.step * unit), best);
    try_scales(grid, x, w, n, ramp((float(grid.high) + first) * unit, trials.step * unit), best);
  }
  for (int pass = 0; pass < 2 && best.s != 0; ++pass) {
    const float inverse = 1.0f / best.s, step = inverse * (0.25f / float(-grid.low * (pass + 1)));
    try_scales(grid, x, w, n, ramp(inverse - 8 * step, step), best);
  }
  return best.s;
}

struct MinTrial {
  ScaleMin fit;
  float gain = 0;
};

// w_sum = sum w, wx = sum w x.
inline void try_scales_mins(int n_levels, bool min_not_negative, const float* x, const float* w, int n,
                            float w_sum, float wx, const Lanes& inverse, const Lanes& m, MinTrial& best) {
  const float high = float(n_levels - 1);
  Lanes wl{}, wll{}, wxl{};
  for (int i = 0; i < n; ++i) {
    const Lanes level = nearest(clamp_lanes((x[i] + m) * inverse, 0.0f, high));
    const Lanes weighted = w[i] * level;
    wl += weighted;
    wll += weighted * level;
    wxl += weighted * x[i];
  }
  const Lanes determinant = w_sum * wll - wl * wl;
  const Lanes solvable = determinant > 1e-5f * w_sum * wll ? determinant : Lanes{};
  const Lanes over = inverse_lanes(solvable);
  Lanes s = (w_sum * wxl - wx * wl) * over, min = (wl * wxl - wll * wx) * over;
  if (min_not_negative) {
    s = min < 0.0f ? wxl * inverse_lanes(wll) : s;
    min = min < 0.0f ? Lanes{} : min;
  }
  const Lanes gain = s > 0.0f ? s * wxl - min * wx : broadcast(-1.0f);
  const int k = best_lane(gain);
  if (gain[k] > best.gain) best = {{s[k], min[k]}, gain[k]};
}

inline ScaleMin scale_min_fit(int n_levels, const Trials& trials, bool min_not_negative, const float* x,
                              const float* w, int n) {
  float low = x[0], high = x[0], w_sum = 0, wx = 0;
  for (int i = 0; i < n; ++i) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
    w_sum += w[i];
    wx += w[i] * x[i];
  }
  if (min_not_negative && low > 0) low = 0;
  if (!(high > low)) return {0, -low};
  const float extent = float(n_levels - 1), range = high - low;
  const auto held = [&](const Lanes& m) { return min_not_negative ? (m < 0.0f ? Lanes{} : m) : m; };
  // A flat level at the mean is what any fit has to beat.
  const float mean = wx / w_sum;
  MinTrial best;
  best.fit = {0, min_not_negative && mean > 0 ? 0 : -mean};
  best.gain = min_not_negative && mean > 0 ? 0 : mean * wx;
  for (int batch = 0; batch < trials.batches; ++batch) {
    const Lanes steps = ramp(extent + trials.first + trials.step * float(kLanes * batch), trials.step);
    const Lanes inverse = steps * (1.0f / range);
    // What the grid leaves out (or overhangs) is taken from the top, from both ends, from the bottom.
    const Lanes spare = range - extent * range / steps;
    for (int place = 0; place < 3; ++place)
      try_scales_mins(n_levels, min_not_negative, x, w, n, w_sum, wx, inverse,
                      held(-(low + spare * (0.5f * float(place)))), best);
  }
  for (int pass = 0; pass < 2 && best.fit.s > 0; ++pass) {
    // Four scales by four minima around the best.
    const Lanes fine = {-1.5f, -0.5f, 0.5f, 1.5f, -1.5f, -0.5f, 0.5f, 1.5f,
                        -1.5f, -0.5f, 0.5f, 1.5f, -1.5f, -0.5f, 0.5f, 1.5f};
    const Lanes coarse = {-1.5f, -1.5f, -1.5f, -1.5f, -0.5f, -0.5f, -0.5f, -0.5f,
                          0.5f,  0.5f,  0.5f,  0.5f,  1.5f,  1.5f,  1.5f,  1.5f};
    const float inverse = 1.0f / best.fit.s, width = 0.4f / float(pass + 1);
    try_scales_mins(n_levels, min_not_negative, x, w, n, w_sum, wx,
                    inverse * (1.0f + fine * (width / extent)),
                    held(best.fit.m + best.fit.s * coarse * (0.5f * width)), best);
  }
  return best.fit;
}

// The best of sixteen integer scales around scale[j], for each sub-block; returns the error and the ideal
// scales and d for the levels these give.
inline double settle(const SymmetricSpec& spec, const float* x, const float* w, float* scale,
                     SymmetricSuperblock& block, float& better_d) {
  const float d = f16_to_f32(block.d), inverse_d = inverse_or_zero(d);
  double error = 0, top = 0, bottom = 0;
  for (int j = 0; j < spec.sub_blocks; ++j) {
    const float* xs = x + j * spec.length;
    const float* ws = w + j * spec.length;
    const int centre = nearest_int_in(scale[j] * inverse_d, spec.scale_low, spec.scale_high);
    const Lanes integer =
        clamp_lanes(ramp(float(centre - 7), 1.0f), float(spec.scale_low), float(spec.scale_high));
    const Lanes s = d * integer, inverse = inverse_lanes(s);
    Lanes wll{}, wxl{}, errors{};
    for (int i = 0; i < spec.length; ++i) {
      const Lanes level = level_of(spec.grid, xs[i] * inverse);
      const Lanes weighted = ws[i] * level, difference = xs[i] - s * level;
      wll += weighted * level;
      wxl += weighted * xs[i];
      errors += ws[i] * difference * difference;
    }
    const int k = best_lane(-errors);
    block.scale[j] = int(integer[k]);
    error += errors[k];
    if (wll[k] > 0) scale[j] = wxl[k] / wll[k];
    top += double(integer[k]) * wxl[k];
    bottom += double(integer[k]) * integer[k] * wll[k];
  }
  better_d = bottom > 0 ? float(top / bottom) : d;
  return error;
}

inline void superblock_fit(const SymmetricSpec& spec, const float* x, const float* w,
                           SymmetricSuperblock& out) {
  float scale[kMaxSubBlocks];
  for (int j = 0; j < spec.sub_blocks; ++j)
    scale[j] = scale_fit(spec.grid, spec.trials, x + j * spec.length, w + j * spec.length, spec.length);
  // The largest scale takes the longer, negative end, so d has the opposite sign.
  SymmetricSuperblock next;
  next.d = f16_scale(signed_largest(scale, spec.sub_blocks) / float(spec.scale_low));
  float better_d;
  double error = settle(spec, x, w, scale, next, better_d);
  out = next;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    next.d = f16_scale(better_d);
    if (next.d == out.d) break;
    const double next_error = settle(spec, x, w, scale, next, better_d);
    if (!(next_error < error)) break;
    error = next_error;
    out = next;
  }
  for (int j = 0; j < spec.sub_blocks; ++j)
    levels(spec.grid, x + j * spec.length, inverse_or_zero(f16_to_f32(out.d) * float(out.scale[j])),
           spec.length, out.level + j * spec.length);
}

// Normal equations of x ~ d * (S l) - dmin * M over a superblock.
struct PairSums {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  // Better (d, dmin), when they are determined and positive.
  bool solve(uint16_t& d, uint16_t& dmin) const {
    const double determinant = aa * bb - ab * ab;
    if (determinant > 1e-9 * aa * bb) {
      const double new_d = (ax * bb - bx * ab) / determinant, new_dmin = (ax * ab - aa * bx) / determinant;
      if (!(new_d > 0 && new_dmin > 0)) return false;
      d = f16_scale(float(new_d));
      dmin = f16_scale(float(new_dmin));
      return true;
    }
    if (!(aa > 0 && bb == 0 && ax > 0)) return false;
    d = f16_scale(float(ax / aa));
    return true;
  }
};

// The best of four scales by four minima around fit[j], for each sub-block; returns the error and the sums
// they give.
inline double settle(const ScaleMinSpec& spec, const float* x, const float* w, const ScaleMin* fit,
                     ScaleMinSuperblock& block, PairSums& pair) {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin), top = float(spec.scale_high);
  const float inverse_d = inverse_or_zero(d), inverse_dmin = inverse_or_zero(dmin),
              high = float(spec.n_levels - 1);
  const Lanes fine = {-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2};
  const Lanes coarse = {-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  double error = 0;
  pair = {};
  for (int j = 0; j < spec.sub_blocks; ++j) {
    const float* xs = x + j * spec.length;
    const float* ws = w + j * spec.length;
    const int below_s = nearest_int_in(fit[j].s * inverse_d - 0.5f, 0, spec.scale_high);
    const int below_m = nearest_int_in(fit[j].m * inverse_dmin - 0.5f, 0, spec.scale_high);
    const Lanes scale = clamp_lanes(float(below_s) + fine, 0, top),
                min = clamp_lanes(float(below_m) + coarse, 0, top);
    const Lanes s = d * scale, m = dmin * min, inverse = inverse_lanes(s);
    Lanes wl{}, wll{}, wxl{}, errors{};
    float w_sum = 0, wx = 0;
    for (int i = 0; i < spec.length; ++i) {
      const Lanes level = nearest(clamp_lanes((xs[i] + m) * inverse, 0.0f, high));
      const Lanes weighted = ws[i] * level, difference = xs[i] - s * level + m;
      w_sum += ws[i];
      wx += ws[i] * xs[i];
      wl += weighted;
      wll += weighted * level;
      wxl += weighted * xs[i];
      errors += ws[i] * difference * difference;
    }
    const int k = best_lane(-errors);
    block.scale[j] = int(scale[k]);
    block.min[j] = int(min[k]);
    error += errors[k];
    const double S = scale[k], M = min[k];
    pair.aa += S * S * wll[k];
    pair.ab += S * M * wl[k];
    pair.bb += M * M * w_sum;
    pair.ax += S * wxl[k];
    pair.bx += M * wx;
  }
  return error;
}

inline void superblock_fit(const ScaleMinSpec& spec, const float* x, const float* w,
                           ScaleMinSuperblock& out) {
  ScaleMin fit[kMaxSubBlocks];
  float largest_s = 0, largest_m = 0;
  for (int j = 0; j < spec.sub_blocks; ++j) {
    const int at = j * spec.length;
    fit[j] = scale_min_fit(spec.n_levels, spec.trials, true, x + at, w + at, spec.length);
    if (fit[j].s > largest_s) largest_s = fit[j].s;
    if (fit[j].m > largest_m) largest_m = fit[j].m;
  }
  ScaleMinSuperblock next;
  next.d = f16_scale(largest_s / float(spec.scale_high));
  next.dmin = f16_scale(largest_m / float(spec.scale_high));
  PairSums pair;
  double error = settle(spec, x, w, fit, next, pair);
  out = next;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    if (!pair.solve(next.d, next.dmin) || (next.d == out.d && next.dmin == out.dmin)) break;
    const double next_error = settle(spec, x, w, fit, next, pair);
    if (!(next_error < error)) break;
    error = next_error;
    out = next;
  }
  for (int j = 0; j < spec.sub_blocks; ++j)
    levels_min(spec.n_levels, x + j * spec.length, inverse_or_zero(f16_to_f32(out.d) * float(out.scale[j])),
               f16_to_f32(out.dmin) * float(out.min[j]), spec.length, out.level + j * spec.length);
}

constexpr SearchFunctions kFunctions = {levels,        levels_min,     scale_fit,
                                        scale_min_fit, superblock_fit, superblock_fit};

}  // namespace KVASIR_SEARCH_NAMESPACE
}  // namespace kvasir::formats
