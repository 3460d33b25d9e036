// q2_k: 256 values in 16 sub-blocks of 16, y = d * S * q - dmin * M, q in 0..3, S and M in 0..15. Half n (128
// values), plane t and column l: value 128n + 32t + l has bits 2t..2t+1 of qs[32n + l].
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ2K {
  static constexpr int kValues = 256;
  uint8_t sc[16];  // S | M << 4
  uint8_t qs[64];
  uint16_t d;     // f16
  uint16_t dmin;  // f16
};
static_assert(sizeof(BlockQ2K) == 84);

inline void decode_block(const BlockQ2K& block, float* y) {
  const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, plane = i / 32 % 4, sc = block.sc[i / 16];
    const int q = (block.qs[32 * half + i % 32] >> (2 * plane)) & 3;
    y[i] = d * float(sc & 15) * float(q) - dmin * float(sc >> 4);
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ2K& block) {
  float w[256];
  fit_weights(x, importance, 1.0f, 256, w);
  ScaleMinSuperblock fit;
  fit_superblock(ScaleMinSpec{4, {-0.5f, 0.1f, 1}, 15, 16, 16}, x, w, fit);
  block = {};
  block.d = fit.d;
  block.dmin = fit.dmin;
  for (int j = 0; j < 16; ++j) block.sc[j] = uint8_t(fit.scale[j] | (fit.min[j] << 4));
  for (int i = 0; i < 256; ++i)
    block.qs[32 * (i / 128) + i % 32] |= uint8_t(int(fit.level[i]) << (2 * (i / 32 % 4)));
}

}  // namespace kvasir::formats
