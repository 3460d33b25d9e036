// f32: one IEEE binary32 value a block. Lossless; NaN and infinities pass through.
#pragma once

namespace kvasir::formats {

struct BlockF32 {
  static constexpr int kValues = 1;
  float value;
};
static_assert(sizeof(BlockF32) == 4);

constexpr void decode_block(const BlockF32& block, float* y) { y[0] = block.value; }
constexpr void encode_block(const float* x, const float* /*importance*/, BlockF32& block) {
  block.value = x[0];
}

}  // namespace kvasir::formats
