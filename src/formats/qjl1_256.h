// qjl1_256: 128 values of a key as the signs of 256 random projections and its norm (keys only).
//   sketch[j] = sum_i k[i] P[i][j]    P: 128 x 256 independent N(0, 1), the same everywhere
// Bit j of `signs` (least significant first) is set when sketch[j] > 0. With s = P^T q,
//   q . k ~ sqrt(pi / 2) / 256 * norm * sum_j (bit j ? s[j] : -s[j])
// is unbiased; decode gives the same estimate as a vector, sqrt(pi / 2) / 256 * norm * P (+-1).
// P row by row: splitmix64 from 42 ^ 0xC0FFEE1234567890, u = ((x >> 11) | 1) 2^-53, Box-Muller in double,
// cosine first.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/format.h"
#include "formats/rounding.h"

namespace kvasir::formats {

inline constexpr int kSketch = 256;
inline constexpr float kSketchScale = 1.2533141373155003f / 256;  // sqrt(pi / 2) / 256

struct BlockQjl1_256 {
  static constexpr int kValues = 128;
  static constexpr Basis kBasis = Basis::kModel;
  uint8_t signs[32];
  uint16_t norm;  // bf16
};
static_assert(sizeof(BlockQjl1_256) == 34);

// [128][256]
const float* qjl_projection();
// sketch[j] = sum_i x[i] P[i][j], i rising.
void qjl_sketch(const float* x, float* sketch);

inline void decode_block(const BlockQjl1_256& block, float* y) {
  const float* row = qjl_projection();
  const float scale = kSketchScale * bf16_to_f32(block.norm);
  for (int i = 0; i < 128; ++i, row += kSketch) {
    float sum = 0;
    for (int j = 0; j < kSketch; ++j) sum += block.signs[j / 8] >> (j % 8) & 1 ? row[j] : -row[j];
    y[i] = scale * sum;
  }
}

inline void encode_block(const float* x, const float* /*importance*/, BlockQjl1_256& block) {
  float sketch[kSketch];
  qjl_sketch(x, sketch);
  std::memset(&block, 0, sizeof block);
  for (int j = 0; j < kSketch; ++j) block.signs[j / 8] |= uint8_t((sketch[j] > 0) << (j % 8));
  float squares = 0;
  for (int i = 0; i < 128; ++i) squares += x[i] * x[i];
  block.norm = f32_to_bf16(std::sqrt(squares));
}
inline void encode_published(const float* x, BlockQjl1_256& block) { encode_block(x, nullptr, block); }

}  // namespace kvasir::formats
