// q4_0: 32 values, y = d * (q - 8), q in 0..15; value j and j + 16 share byte j (low and high nibble).
// Without importance d = f16(the value of largest magnitude / -8), so that a cache row is cheap to write;
// with it, a search.
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ4_0 {
  static constexpr int kValues = 32;
  uint16_t d;  // f16
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

inline void decode_block(const BlockQ4_0& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * float(int(block.q[j] & 15) - 8);
    y[j + 16] = d * float(int(block.q[j] >> 4) - 8);
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ4_0& block) {
  float scale = 0;
  if (importance) {
    float w[32];
    fit_weights(x, importance, 1.0f, 32, w);
    scale = fit_symmetric({-8, 7}, {-1.0f, 0.125f, 1}, x, w, 32);
  } else {
    scale = signed_largest(x, 32) / -8.0f;
  }
  block.d = f16_scale(scale);
  const float inverse = inverse_or_zero(f16_to_f32(block.d));
  int code[32];
  for (int i = 0; i < 32; ++i) code[i] = nearest_int_in(x[i] * inverse, -8, 7) + 8;
  for (int j = 0; j < 16; ++j) block.q[j] = uint8_t(code[j] | (code[j + 16] << 4));
}

}  // namespace kvasir::formats
