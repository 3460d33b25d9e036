// tbq3_0, tbq4_0: 32 values in the basis kBlock32 (basis.h), each a 3- or 4-bit level, one f16 scale:
// y[i] = d * level[code i]. Bytes and levels are the published ones; ours is the scale, the least-squares
// one.
//   tbq3_0: code i in bits 3 i .. 3 i + 2 of `codes`, least significant bit first
//   tbq4_0: byte j holds code j (low nibble) and code j + 16 (high nibble)
// Encode: v = r / sqrt(sum r^2 / 32), code = the number of midpoints between levels that are < v, then
// d = sum(r level) / sum(level^2) to nearest f16. A scale of 0 clears the codes. The published encoder takes
// the nearest level by its distances (a tie goes to the lower code) and stores d = sqrt(sum r^2 / 32).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/format.h"
#include "formats/rounding.h"

namespace kvasir::formats {

struct BlockTbq3_0 {
  static constexpr int kValues = 32;
  static constexpr Basis kBasis = Basis::kBlock32;
  uint16_t d;  // f16
  uint8_t codes[12];
};
static_assert(sizeof(BlockTbq3_0) == 14);

struct BlockTbq4_0 {
  static constexpr int kValues = 32;
  static constexpr Basis kBasis = Basis::kBlock32;
  uint16_t d;  // f16
  uint8_t codes[16];
};
static_assert(sizeof(BlockTbq4_0) == 18);

inline constexpr float kTbq3Levels[8] = {-2.1519457f, -1.3439093f, -0.7560053f, -0.2450942f,
                                         0.2450942f,  0.7560053f,  1.3439093f,  2.1519457f};
inline constexpr float kTbq4Levels[16] = {
    -2.7321365f, -2.0685055f, -1.6175243f, -1.2557391f, -0.9419147f, -0.6564307f, -0.3878412f, -0.1283243f,
    0.1283243f,  0.3878412f,  0.6564307f,  0.9419147f,  1.2557391f,  1.6175243f,  2.0685055f,  2.7321365f};

template <int n>
struct Midpoints {
  float between[n - 1];
  constexpr explicit Midpoints(const float (&levels)[n]) : between{} {
    for (int i = 0; i + 1 < n; ++i) between[i] = (levels[i] + levels[i + 1]) / 2;
  }
};
inline constexpr Midpoints<8> kTbq3Midpoints{kTbq3Levels};
inline constexpr Midpoints<16> kTbq4Midpoints{kTbq4Levels};

// The nearest of ascending levels; a tie goes to the lower one.
template <int n>
int nearest_level(const float (&levels)[n], float v) {
  int code = 0;
  while (code + 1 < n && levels[code + 1] - v < v - levels[code]) ++code;
  return code;
}

template <int n>
int midpoints_below(const float (&)[n], float v) {
  const auto& midpoints = [] {
    if constexpr (n == 8)
      return kTbq3Midpoints;
    else
      return kTbq4Midpoints;
  }();
  int code = 0;
  for (const float midpoint : midpoints.between) code += midpoint < v;
  return code;
}

// Codes of one block and its scale, as f16 bits. x holds 32 values of magnitude up to 2^27, without NaN.
template <int n>
uint16_t tbq_block_codes(const float (&levels)[n], const float* x, bool published, uint8_t* codes) {
  float sums[32];
  const auto fold = [&] {
    for (int width = 16; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
    return sums[0];
  };
  float squares = 0;
  if (published) {
    for (int i = 0; i < 32; ++i) squares += x[i] * x[i];
  } else {
    for (int i = 0; i < 32; ++i) sums[i] = x[i] * x[i];
    squares = fold();
  }
  const float rms = std::sqrt(squares / 32);
  std::memset(codes, 0, 32);
  if (rms == 0) return 0;
  const float inverse = 1.0f / rms;
  for (int i = 0; i < 32; ++i)
    codes[i] =
        uint8_t(published ? nearest_level(levels, x[i] * inverse) : midpoints_below(levels, x[i] * inverse));
  float scale = rms;
  if (!published) {
    for (int i = 0; i < 32; ++i) sums[i] = x[i] * levels[codes[i]];
    const float products = fold();
    for (int i = 0; i < 32; ++i) sums[i] = levels[codes[i]] * levels[codes[i]];
    scale = products / fold();
  }
  const uint16_t d = f16_scale(scale);
  if (d == 0 && !published) std::memset(codes, 0, 32);
  return d;
}

inline void pack_tbq(const uint8_t* codes, BlockTbq3_0& block) {
  for (int i = 0; i < 32; i += 8) {
    uint32_t bits = 0;
    for (int j = 0; j < 8; ++j) bits |= uint32_t(codes[i + j]) << (3 * j);
    std::memcpy(block.codes + i / 8 * 3, &bits, 3);
  }
}
inline void pack_tbq(const uint8_t* codes, BlockTbq4_0& block) {
  for (int j = 0; j < 16; ++j) block.codes[j] = uint8_t(codes[j] | codes[j + 16] << 4);
}
inline int tbq_code(const BlockTbq3_0& block, int i) {
  uint32_t bits = 0;
  std::memcpy(&bits, block.codes + i / 8 * 3, 3);
  return int(bits >> (i % 8 * 3) & 7);
}
inline int tbq_code(const BlockTbq4_0& block, int i) {
  return i < 16 ? block.codes[i] & 15 : block.codes[i - 16] >> 4;
}
inline const float (&tbq_levels(const BlockTbq3_0&))[8] { return kTbq3Levels; }
inline const float (&tbq_levels(const BlockTbq4_0&))[16] { return kTbq4Levels; }

template <typename Block>
void encode_tbq(const float* x, bool published, Block& block) {
  uint8_t codes[32];
  block.d = tbq_block_codes(tbq_levels(block), x, published, codes);
  pack_tbq(codes, block);
}
template <typename Block>
void decode_tbq(const Block& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int i = 0; i < 32; ++i) y[i] = d == 0 ? 0.0f : d * tbq_levels(block)[tbq_code(block, i)];
}

inline void decode_block(const BlockTbq3_0& block, float* y) { decode_tbq(block, y); }
inline void decode_block(const BlockTbq4_0& block, float* y) { decode_tbq(block, y); }
inline void encode_block(const float* x, const float* /*importance*/, BlockTbq3_0& block) {
  encode_tbq(x, false, block);
}
inline void encode_block(const float* x, const float* /*importance*/, BlockTbq4_0& block) {
  encode_tbq(x, false, block);
}
inline void encode_published(const float* x, BlockTbq3_0& block) { encode_tbq(x, true, block); }
inline void encode_published(const float* x, BlockTbq4_0& block) { encode_tbq(x, true, block); }

}  // namespace kvasir::formats
