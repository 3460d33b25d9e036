// q6_k: 256 values in 16 sub-blocks of 16, y = d * S * q, q in -32..31, S an int8. Value i = 128n + 32t + l:
// the low nibble (t < 2) or high nibble of ql[64n + 32(t % 2) + l] holds the low four bits of q + 32, bits
// 2t..2t+1 of qh[32n + l] the others.
#pragma once
#include <cstdint>

#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockQ6K {
  static constexpr int kValues = 256;
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t sc[16];
  uint16_t d;  // f16
};
static_assert(sizeof(BlockQ6K) == 210);

inline void decode_block(const BlockQ6K& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, plane = i / 32 % 4, column = i % 32;
    const int low = (block.ql[64 * half + 32 * (plane % 2) + column] >> (4 * (plane / 2))) & 15;
    const int high = (block.qh[32 * half + column] >> (2 * plane)) & 3;
    y[i] = d * float(block.sc[i / 16]) * float((low | (high << 4)) - 32);
  }
}

inline void encode_block(const float* x, const float* importance, BlockQ6K& block) {
  float w[256];
  fit_weights(x, importance, 0.0f, 256, w);
  SymmetricSuperblock fit;
  fit_superblock(SymmetricSpec{{-32, 31}, {-8.0f, 0.6f, 1}, -128, 127, 16, 16}, x, w, fit);
  block = {};
  block.d = fit.d;
  for (int j = 0; j < 16; ++j) block.sc[j] = int8_t(fit.scale[j]);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, plane = i / 32 % 4, column = i % 32, q = int(fit.level[i]) + 32;
    block.ql[64 * half + 32 * (plane % 2) + column] |= uint8_t((q & 15) << (4 * (plane / 2)));
    block.qh[32 * half + column] |= uint8_t((q >> 4) << (2 * plane));
  }
}

}  // namespace kvasir::formats
