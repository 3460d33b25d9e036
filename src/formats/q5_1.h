// q5_1: 32 values, y = d * q + m, q in 0..31; value j and j + 16 share byte j (low and high nibble).
// Bit j of qh is bit 4 of value j.
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ5_1 {
  static constexpr int kValues = 32;
  uint16_t d;     // f16
  uint16_t m;     // f16
  uint8_t qh[4];  // little-endian bits 4 of the 32 values
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

inline void decode_block(const BlockQ5_1& block, float* y) {
  const float d = f16_to_f32(block.d), m = f16_to_f32(block.m);
  for (int j = 0; j < 16; ++j) {
    const int high_0 = (block.qh[j / 8] >> (j % 8)) & 1, high_1 = (block.qh[2 + j / 8] >> (j % 8)) & 1;
    y[j] = d * float((block.q[j] & 15) | (high_0 << 4)) + m;
    y[j + 16] = d * float((block.q[j] >> 4) | (high_1 << 4)) + m;
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ5_1& block) {
  float w[32], level[32];
  fit_weights(x, importance, 1.0f, 32, w);
  const ScaleMin fit = fit_scale_min(32, {-3.0f, 0.35f, 1}, false, x, w, 32);
  block.d = f16_scale(fit.s);
  block.m = f16_scale(-fit.m);
  round_levels_min(32, x, inverse_or_zero(f16_to_f32(block.d)), -f16_to_f32(block.m), 32, level);
  for (int j = 0; j < 4; ++j) block.qh[j] = 0;
  for (int j = 0; j < 16; ++j) block.q[j] = uint8_t((int(level[j]) & 15) | ((int(level[j + 16]) & 15) << 4));
  for (int j = 0; j < 32; ++j) block.qh[j / 8] |= uint8_t((int(level[j]) >> 4) << (j % 8));
}

}  // namespace kvasir::formats
