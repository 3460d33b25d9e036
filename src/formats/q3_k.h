// q3_k: 256 values in 16 sub-blocks of 16, y = d * S * q, q in -4..3, S in -32..31. Value i = 128n + 32t + l:
// bits 2t..2t+1 of qs[32n + l] hold the low two bits of q + 4, bit 4n + t of hmask[l] the third.
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ3K {
  static constexpr int kValues = 256;
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t sc[12];  // 16 scales + 32: low nibbles in bytes 0..7, upper two bits in bytes 8..11
  uint16_t d;      // f16
};
static_assert(sizeof(BlockQ3K) == 110);

// Scale of sub-block j, in -32..31.
constexpr int q3_k_scale(const BlockQ3K& block, int j) {
  const int low = (block.sc[j % 8] >> (4 * (j / 8))) & 15, high = (block.sc[8 + j % 4] >> (2 * (j / 4))) & 3;
  return (low | (high << 4)) - 32;
}

inline void decode_block(const BlockQ3K& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, plane = i / 32 % 4, column = i % 32;
    const int q = (block.qs[32 * half + column] >> (2 * plane)) & 3;
    const int high = (block.hmask[column] >> (4 * half + plane)) & 1;
    y[i] = d * float(q3_k_scale(block, i / 16)) * float(q + 4 * high - 4);
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ3K& block) {
  float w[256];
  fit_weights(x, importance, 2.0f, 256, w);
  SymmetricSuperblock fit;
  fit_superblock(SymmetricSpec{{-4, 3}, {-0.9f, 0.15f, 1}, -32, 31, 16, 16}, x, w, fit);
  block = {};
  block.d = fit.d;
  for (int j = 0; j < 16; ++j) {
    const int s = fit.scale[j] + 32;
    block.sc[j % 8] |= uint8_t((s & 15) << (4 * (j / 8)));
    block.sc[8 + j % 4] |= uint8_t((s >> 4) << (2 * (j / 4)));
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, plane = i / 32 % 4, q = int(fit.level[i]) + 4;
    block.qs[32 * half + i % 32] |= uint8_t((q & 3) << (2 * plane));
    block.hmask[i % 32] |= uint8_t((q >> 2) << (4 * half + plane));
  }
}

}  // namespace kvasir::formats
