// exp in single precision, written so that a loop around it vectorises.
#pragma once
#include <bit>
#include <cstdint>

namespace kvasir {

// exp(x) with x clamped to [-87, 88]; relative error below 3e-7. Always inlined: a copy compiled for one instruction set must
// never be linked into code for another.
[[gnu::always_inline]] static inline float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer in the low mantissa bits
  const float k = shifted - 12582912.0f;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) + 127) << 23);
}

}  // namespace kvasir
