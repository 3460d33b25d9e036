// iq4_nl: 32 values, y = d * level[q] with the 16 unevenly spaced levels of iq4_levels.h; value j and j + 16
// share byte j (low and high nibble).
#pragma once
#include <cstdint>

#include "formats/iq4_levels.h"
#include "formats/rounding.h"
#include "formats/search.h"

namespace kvasir::formats {

struct BlockIq4Nl {
  static constexpr int kValues = 32;
  uint16_t d;  // f16
  uint8_t q[16];
};
static_assert(sizeof(BlockIq4Nl) == 18);

inline void decode_block(const BlockIq4Nl& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * float(kIq4Levels[block.q[j] & 15]);
    y[j + 16] = d * float(kIq4Levels[block.q[j] >> 4]);
  }
}

inline void encode_block(const float* x, const float* importance, BlockIq4Nl& block) {
  float w[32], level[32];
  fit_weights(x, importance, 2.0f, 32, w);
  block.d = f16_scale(fit_symmetric(kIq4Grid, kIq4Trials, x, w, 32));
  round_levels(kIq4Grid, x, inverse_or_zero(f16_to_f32(block.d)), 32, level);
  for (int j = 0; j < 16; ++j) block.q[j] = uint8_t(iq4_code(level[j]) | (iq4_code(level[j + 16]) << 4));
}

}  // namespace kvasir::formats
