// Rounding and clamping shared by the scalar encoders. Everything here is exact to reproduce on any device:
// no library call, no fused multiply-add, ties to even. Always inline, as base/half.h.
#pragma once
#include <bit>
#include <cstdint>

#include "base/half.h"

namespace kvasir::formats {

// Nearest integer, ties to even, for |v| <= 2^22: adding 1.5 * 2^23 leaves no fraction bits.
[[gnu::always_inline]] inline int nearest_int(float v) {
  const float shifted = v + 12582912.0f;
  return int(std::bit_cast<uint32_t>(shifted) & 0x007fffffu) - 0x00400000;
}

[[gnu::always_inline]] inline float clamp(float v, float low, float high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

// Nearest integer of v held to [low, high]; v must not be NaN.
[[gnu::always_inline]] inline int nearest_int_in(float v, int low, int high) {
  return nearest_int(clamp(v, float(low), float(high)));
}

// max |x|, of finite values: magnitudes order as their bits do, and integer maxima vectorise.
[[gnu::always_inline]] inline float largest_magnitude(const float* x, int n) {
  int32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

// The value of largest magnitude, the first of equals.
[[gnu::always_inline]] inline float signed_largest(const float* x, int n) {
  const float magnitude = largest_magnitude(x, n);
  for (int i = 0; i < n; ++i)
    if (x[i] == magnitude || x[i] == -magnitude) return x[i];
  return 0;
}

// Nearest f16 to a block scale, held to the finite range: a scale must never decode to infinity.
[[gnu::always_inline]] inline uint16_t f16_scale(float v) {
  return f32_to_f16(clamp(v, -65504.0f, 65504.0f));
}

// 1 / v, or 0 for 0: a block whose scale underflows gets all-zero codes.
[[gnu::always_inline]] inline float inverse_or_zero(float v) { return v != 0.0f ? 1.0f / v : 0.0f; }

// An encoder's input made safe for its sums: NaN becomes 0, magnitudes above 2^27 (more than any block scale
// can hold) saturate, and those below 2^-50 (under half the smallest step of any type) become 0.
[[gnu::always_inline]] inline float tame(float v) {
  constexpr float kLargest = 0x1p27f, kSmallest = 0x1p-50f;
  if (!(v == v)) return 0.0f;
  if (v < kSmallest && v > -kSmallest) return 0.0f;
  return clamp(v, -kLargest, kLargest);
}

}  // namespace kvasir::formats
