// q5_0: 32 values, y = d * (q - 16), q in 0..31; value j and j + 16 share byte j (low and high nibble).
// Bit j of qh is bit 4 of value j.
// Without importance d = f16(the value of largest magnitude / -16), so that a cache row is cheap to write;
// with it, a search.
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ5_0 {
  static constexpr int kValues = 32;
  uint16_t d;     // f16
  uint8_t qh[4];  // little-endian bits 4 of the 32 values
  uint8_t q[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

inline void decode_block(const BlockQ5_0& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int j = 0; j < 16; ++j) {
    const int high_0 = (block.qh[j / 8] >> (j % 8)) & 1, high_1 = (block.qh[2 + j / 8] >> (j % 8)) & 1;
    y[j] = d * float(((block.q[j] & 15) | (high_0 << 4)) - 16);
    y[j + 16] = d * float(((block.q[j] >> 4) | (high_1 << 4)) - 16);
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ5_0& block) {
  float scale = 0;
  if (importance) {
    float w[32];
    fit_weights(x, importance, 1.0f, 32, w);
    scale = fit_symmetric({-16, 15}, {-1.0f, 0.125f, 1}, x, w, 32);
  } else {
    scale = signed_largest(x, 32) / -16.0f;
  }
  block.d = f16_scale(scale);
  const float inverse = inverse_or_zero(f16_to_f32(block.d));
  int code[32];
  for (int i = 0; i < 32; ++i) code[i] = nearest_int_in(x[i] * inverse, -16, 15) + 16;
  for (int j = 0; j < 4; ++j) block.qh[j] = 0;
  for (int j = 0; j < 16; ++j) block.q[j] = uint8_t((code[j] & 15) | ((code[j + 16] & 15) << 4));
  for (int j = 0; j < 32; ++j) block.qh[j / 8] |= uint8_t((code[j] >> 4) << (j % 8));
}

}  // namespace kvasir::formats
