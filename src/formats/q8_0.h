// q8_0: 32 values, y = d * q. d = f16(max|x| / 127); q = nearest(x * (1 / d)) in [-127, 127], from the d that
// is stored.
#pragma once
#include <cstdint>

#include "formats/rounding.h"

namespace kvasir::formats {

struct BlockQ8_0 {
  static constexpr int kValues = 32;
  uint16_t d;  // f16
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

inline void decode_block(const BlockQ8_0& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) y[i] = d * float(block.q[i]);
}

inline void encode_block(const float* x, const float* /*importance*/, BlockQ8_0& block) {
  block.d = f16_scale(largest_magnitude(x, 32) / 127.0f);
  const float inverse = inverse_or_zero(f16_to_f32(block.d));
  for (int i = 0; i < 32; ++i) block.q[i] = int8_t(nearest_int_in(x[i] * inverse, -127, 127));
}

}  // namespace kvasir::formats
