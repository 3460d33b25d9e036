// q4_1: 32 values, y = d * q + m, q in 0..15; value j and j + 16 share byte j (low and high nibble).
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ4_1 {
  static constexpr int kValues = 32;
  uint16_t d;  // f16
  uint16_t m;  // f16
  uint8_t q[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

inline void decode_block(const BlockQ4_1& block, float* y) {
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * float(block.q[j] & 15) + m;
    y[j + 16] = d * float(block.q[j] >> 4) + m;
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ4_1& block) {
  float w[32], level[32];
  fit_weights(x, importance, 1.0f, 32, w);
  const ScaleMin fit = fit_scale_min(16, {-2.0f, 0.25f, 1}, false, x, w, 32);
  block.d = f16_scale(fit.s);
  block.m = f16_scale(-fit.m);
  round_levels_min(16, x, inverse_or_zero(f16_to_f32(block.d)), -f16_to_f32(block.m), 32, level);
  for (int j = 0; j < 16; ++j) block.q[j] = uint8_t(int(level[j]) | (int(level[j + 16]) << 4));
}

}  // namespace kvasir::formats
