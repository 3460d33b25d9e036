// q4_k: 256 values in 8 sub-blocks of 32, y = d * S * q - dmin * M, q in 0..15, S and M in 0..63. Sub-blocks
// 2p and 2p + 1 are the low and high nibbles of bytes 32p..32p+31.
#pragma once
#include <cstdint>

#include "formats/packed_scales.h"
#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ4K {
  static constexpr int kValues = 256;
  uint16_t d;      // f16
  uint16_t dmin;   // f16
  uint8_t sc[12];  // packed_scales.h
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4K) == 144);

inline void decode_block(const BlockQ4K& block, float* y) {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = unpack_scale_min(block.sc, j);
    const float s = d * float(scale), m = dmin * float(min);
    for (int l = 0; l < 32; ++l)
      y[32 * j + l] = s * float((block.qs[32 * (j / 2) + l] >> (4 * (j % 2))) & 15) - m;
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ4K& block) {
  float w[256];
  fit_weights(x, importance, 2.0f, 256, w);
  ScaleMinSuperblock fit;
  fit_superblock(ScaleMinSpec{16, {-2.0f, 0.25f, 1}, 63, 8, 32}, x, w, fit);
  block.d = fit.d;
  block.dmin = fit.dmin;
  pack_scales_mins(fit.scale, fit.min, block.sc);
  for (int p = 0; p < 4; ++p)
    for (int l = 0; l < 32; ++l)
      block.qs[32 * p + l] = uint8_t(int(fit.level[64 * p + l]) | (int(fit.level[64 * p + 32 + l]) << 4));
}

}  // namespace kvasir::formats
