// bf16: the upper half of an IEEE binary32 value, rounded to nearest even. NaN stays NaN.
#pragma once
#include <cstdint>

#include "base/half.h"

namespace kvasir::formats {

struct BlockBf16 {
  static constexpr int kValues = 1;
  uint16_t bits;
};
static_assert(sizeof(BlockBf16) == 2);

inline void decode_block(const BlockBf16& block, float* y) { y[0] = bf16_to_f32(block.bits); }
inline void encode_block(const float* x, const float* /*importance*/, BlockBf16& block) {
  block.bits = f32_to_bf16(x[0]);
}

}  // namespace kvasir::formats
