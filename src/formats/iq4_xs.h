// iq4_xs: 256 values in 8 sub-blocks of 32, y = d * S * level[q] with the levels of iq4_levels.h and S in
// -32..31; in each sub-block value j and j + 16 share byte j (low and high nibble).
#pragma once
#include <cstdint>

#include "formats/iq4_levels.h"
#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockIq4Xs {
  static constexpr int kValues = 256;
  uint16_t d;     // f16
  uint16_t sh;    // bits 2j..2j+1: upper two bits of S_j + 32
  uint8_t sl[4];  // nibble j: its low four bits
  uint8_t qs[128];
};
static_assert(sizeof(BlockIq4Xs) == 136);

inline void decode_block(const BlockIq4Xs& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int j = 0; j < 8; ++j) {
    const int low = (block.sl[j / 2] >> (4 * (j % 2))) & 15, high = (block.sh >> (2 * j)) & 3;
    const float s = d * float((low | (high << 4)) - 32);
    for (int l = 0; l < 16; ++l) {
      y[32 * j + l] = s * float(kIq4Levels[block.qs[16 * j + l] & 15]);
      y[32 * j + 16 + l] = s * float(kIq4Levels[block.qs[16 * j + l] >> 4]);
    }
  }
}

inline void encode_block(const float* x, const float* importance, BlockIq4Xs& block) {
  float w[256];
  fit_weights(x, importance, 2.0f, 256, w);
  SymmetricSuperblock fit;
  fit_superblock(SymmetricSpec{kIq4Grid, kIq4Trials, -32, 31, 8, 32}, x, w, fit);
  block = {};
  block.d = fit.d;
  for (int j = 0; j < 8; ++j) {
    const int s = fit.scale[j] + 32;
    block.sl[j / 2] |= uint8_t((s & 15) << (4 * (j % 2)));
    block.sh |= uint16_t((s >> 4) << (2 * j));
    for (int l = 0; l < 16; ++l)
      block.qs[16 * j + l] =
          uint8_t(iq4_code(fit.level[32 * j + l]) | (iq4_code(fit.level[32 * j + 16 + l]) << 4));
  }
}

}  // namespace kvasir::formats
