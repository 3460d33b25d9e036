// tbq2_h, tbq3_h, tbq4_h: one head of d values in the basis of head_wide.h, each a b-bit level, one f16 scale
// for all of them. y[i] = scale * level[code i].
//
// Row: d / 64 blocks of codes (8 b bytes each; code i in bits b i .. b i + b - 1 of the row, least
// significant bit first), then the f16 scale. Levels ascend with the code and depend on d:
// head_wide_levels.h.
//
// Encode: v = r / sqrt(sum r^2 / d), code = the number of midpoints between levels that are < v (so a tie
// goes to the lower code), then scale = sum(r level) / sum(level^2), to nearest f16. A scale of 0 clears the
// codes. Each sum has 32 accumulators (i % 32), folded 16-8-4-2-1.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/head_wide.h"
#include "formats/head_wide_levels.h"
#include "formats/rounding.h"

namespace kvasir::formats {

template <int b>
struct BlockTbqH {
  static constexpr int kValues = 64;
  static constexpr int kBits = b;
  static constexpr Basis kBasis = Basis::kHeadWide;
  uint8_t codes[8 * b];
};
static_assert(sizeof(BlockTbqH<3>) == 24);

template <int b>
struct HeadCodebook {
  std::array<float, 1 << b> level;           // ascending
  std::array<float, (1 << b) - 1> midpoint;  // between level i and i + 1
  double nmse;                               // on unit Gaussian vectors
};

template <int b>
constexpr HeadCodebook<b> mirror(const HeadWideLevels<b>& half) {
  constexpr int kHalf = 1 << (b - 1);
  HeadCodebook<b> book{};
  for (int i = 0; i < kHalf; ++i) {
    book.level[size_t(kHalf + i)] = half.positive[i];
    book.level[size_t(kHalf - 1 - i)] = -half.positive[i];
  }
  for (size_t i = 0; i + 1 < book.level.size(); ++i)
    book.midpoint[i] = 0.5f * (book.level[i] + book.level[i + 1]);
  book.nmse = half.nmse;
  return book;
}

template <int b>
constexpr const auto& head_levels() {
  if constexpr (b == 2)
    return kHeadWideLevels2;
  else if constexpr (b == 3)
    return kHeadWideLevels3;
  else
    return kHeadWideLevels4;
}

// For head size 64, 128, 256, 512.
template <int b>
inline constexpr HeadCodebook<b> kHeadCodebooks[4] = {
    mirror<b>(head_levels<b>()[0]), mirror<b>(head_levels<b>()[1]), mirror<b>(head_levels<b>()[2]),
    mirror<b>(head_levels<b>()[3])};

template <int b>
constexpr const HeadCodebook<b>& head_codebook(int d) {
  return kHeadCodebooks<b>[d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3];
}

// Folds 32 accumulators.
inline float fold(float* sum) {
  for (int width = 16; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) sum[i] += sum[i + width];
  return sum[0];
}

template <int b>
void decode_head(const std::byte* row, int d, float* out) {
  const HeadCodebook<b>& book = head_codebook<b>(d);
  uint16_t bits;
  std::memcpy(&bits, row + d / 8 * b, sizeof bits);
  const float scale = f16_to_f32(bits);
  for (int i = 0; i < d; i += 8) {
    uint32_t codes = 0;
    std::memcpy(&codes, row + i / 8 * b, b);
    for (int j = 0; j < 8; ++j) out[i + j] = scale * book.level[(codes >> (b * j)) & ((1 << b) - 1)];
  }
}

template <int b>
int head_code(const HeadCodebook<b>& book, float v) {
  int code = 0;
  for (const float midpoint : book.midpoint) code += midpoint < v;
  return code;
}

// x: d values without NaN, of magnitude up to 2^27 and not between 0 and 2^-50 (`tame` gives such). Returns
// the scale before its rounding; one above f16 is stored as the largest.
template <int b>
float encode_head_finite(const float* x, int d, std::byte* row) {
  const HeadCodebook<b>& book = head_codebook<b>(d);
  const size_t code_bytes = size_t(d / 8 * b);
  std::memset(row, 0, code_bytes + kHeadScaleBytes);
  float squares[32]{}, products[32]{}, levels[32]{};
  for (int i = 0; i < d; ++i) squares[i % 32] += x[i] * x[i];
  const float mean = fold(squares) * (1.0f / float(d));  // exact: d is a power of two
  if (mean == 0) return 0;
  const float inverse = 1.0f / std::sqrt(mean);
  uint8_t codes[kMaxHeadWide];
  for (int i = 0; i < d; ++i) {
    codes[i] = uint8_t(head_code<b>(book, x[i] * inverse));
    const float level = book.level[codes[i]];
    products[i % 32] += x[i] * level;
    levels[i % 32] += level * level;
  }
  const float exact = fold(products) / fold(levels);
  const uint16_t scale = f16_scale(exact);
  if (scale == 0) return 0;
  for (int i = 0; i < d; i += 8) {
    uint32_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= uint32_t(codes[i + j]) << (b * j);
    std::memcpy(row + i / 8 * b, &packed, b);
  }
  std::memcpy(row + code_bytes, &scale, sizeof scale);
  return exact;
}

// Any x, as Format::encode promises.
template <int b>
void encode_head_tamed(const float* x, int d, std::byte* row) {
  float tamed[kMaxHeadWide];
  for (int i = 0; i < d; ++i) tamed[i] = tame(x[i]);
  encode_head_finite<b>(tamed, d, row);
}

// Refuses what has no faithful code. A magnitude above 2^27 overflows the scale of any head.
template <int b>
EncodeStatus encode_head_checked(const float* x, int d, std::byte* row) {
  float tamed[kMaxHeadWide];
  bool finite = true, in_range = true;
  for (int i = 0; i < d; ++i) {
    finite &= std::isfinite(x[i]);
    tamed[i] = tame(x[i]);
    in_range &= tamed[i] == x[i] || tamed[i] == 0;
  }
  const size_t bytes = size_t(d / 8 * b) + kHeadScaleBytes;
  // 65520 is the first value that f16 rounds to infinity.
  if (finite && in_range && encode_head_finite<b>(tamed, d, row) < 65520.0f) return EncodeStatus::kOk;
  std::memset(row, 0, bytes);
  return finite ? EncodeStatus::kOverflow : EncodeStatus::kNotFinite;
}

}  // namespace kvasir::formats
