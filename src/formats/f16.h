// f16: one IEEE binary16 value a block, rounded to nearest even. As IEEE says, NaN stays NaN and |x| >= 65520
// is infinite.
#pragma once
#include <cstdint>

#include "base/half.h"

namespace kvasir::formats {

struct BlockF16 {
  static constexpr int kValues = 1;
  uint16_t bits;
};
static_assert(sizeof(BlockF16) == 2);

inline void decode_block(const BlockF16& block, float* y) { y[0] = f16_to_f32(block.bits); }
inline void encode_block(const float* x, const float* /*importance*/, BlockF16& block) {
  block.bits = f32_to_f16(x[0]);
}

}  // namespace kvasir::formats
