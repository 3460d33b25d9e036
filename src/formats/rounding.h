// Rounding and clamping shared by the scalar encoders. Everything here is exact to reproduce on any device: no library
// call, no fused multiply-add, ties to even.
#pragma once
#include <cstdint>

#include "base/half.h"

namespace kvasir::formats {

// Nearest integer, ties to even, for |v| <= 2^22: adding 1.5 * 2^23 leaves no fraction bits.
inline int nearest_int(float v) {
  const float shifted = v + 12582912.0f;
  return int(std::bit_cast<uint32_t>(shifted) & 0x007fffffu) - 0x00400000;
}

// Nearest integer of v held to [low, high]; v must not be NaN.
inline int nearest_int_in(float v, int low, int high) {
  if (v <= float(low)) return low;
  if (v >= float(high)) return high;
  return nearest_int(v);
}

inline float clamp(float v, float low, float high) { return v < low ? low : (v > high ? high : v); }

// Nearest f16 to a block scale, held to the finite range: a scale must never decode to infinity.
inline uint16_t f16_scale(float v) { return f32_to_f16(clamp(v, -65504.0f, 65504.0f)); }

// 1 / v, or 0 for 0: a block whose scale underflows gets all-zero codes.
inline float inverse_or_zero(float v) { return v != 0.0f ? 1.0f / v : 0.0f; }

// An encoder's input made safe for its sums: NaN becomes 0, magnitudes above 2^27 (more than any block scale can hold)
// saturate, and those below 2^-50 (under half the smallest step of any type) become 0.
inline float tame(float v) {
  constexpr float kLargest = 0x1p27f, kSmallest = 0x1p-50f;
  if (!(v == v)) return 0.0f;
  if (v < kSmallest && v > -kSmallest) return 0.0f;
  return clamp(v, -kLargest, kLargest);
}

}  // namespace kvasir::formats
