// q4_polar: 128 values in the basis kBlock128 (basis.h), each a 4-bit level, one f16 norm:
//   r[i] = d / sqrt(128) * level[code i]
// Byte i of `codes` holds codes 2 i (low nibble) and 2 i + 1. One bit of the 16 residual bytes is used: bit 0
// of the first says on which side of the hyperplane of the fixed signs g the rest lies. Reading it is
// optional (decode_polar_residual adds g * 0.5 / sqrt(128) to the levels): it makes the error larger, so
// decode leaves it out. Levels: 100 Lloyd iterations for N(0, 1) from the midpoints of 16 equal cells of [-4,
// 4]. Encode: code = the number of midpoints between levels that are < v, v = r * sqrt(128) / |r|; then the
// least-squares norm d = sqrt(128) sum(r level) / sum(level^2); the published encoder stores d = |r|.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/format.h"
#include "formats/rounding.h"

namespace kvasir::formats {

struct BlockQ4Polar {
  static constexpr int kValues = 128;
  static constexpr Basis kBasis = Basis::kBlock128;
  uint16_t d;  // f16
  uint8_t codes[64];
  uint8_t residual[16];
};
static_assert(sizeof(BlockQ4Polar) == 82);

inline constexpr float kPolarLevels[16] = {-2.754354807f, -2.093562707f, -1.643041510f, -1.279739752f,
                                           -0.962640978f, -0.672392117f, -0.397897103f, -0.131757782f,
                                           0.131757782f,  0.397897103f,  0.672392117f,  0.962640978f,
                                           1.279739752f,  1.643041510f,  2.093562707f,  2.754354807f};
inline constexpr float kPolarMidpoints[15] = {-2.423958757f, -1.868302108f, -1.461390631f, -1.121190365f,
                                              -0.817516548f, -0.535144610f, -0.264827443f, 4.996e-16f,
                                              0.264827443f,  0.535144610f,  0.817516548f,  1.121190365f,
                                              1.461390631f,  1.868302108f,  2.423958757f};
inline constexpr float kInverseRoot128 = 0.08838834764831845f;
inline constexpr float kRoot128 = 11.313708498984761f;

// Signs of the residual direction: xorshift32 from 42, odd is +1.
constexpr std::array<int8_t, 128> make_polar_signs() {
  std::array<int8_t, 128> signs{};
  uint32_t x = 42;
  for (int8_t& sign : signs) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    sign = x & 1 ? 1 : -1;
  }
  return signs;
}
inline constexpr std::array<int8_t, 128> kPolarSigns = make_polar_signs();

inline int polar_code(const BlockQ4Polar& block, int i) {
  return i % 2 ? block.codes[i / 2] >> 4 : block.codes[i / 2] & 15;
}

inline void decode_polar(const BlockQ4Polar& block, bool residual, float* r) {
  const float d = f16_to_f32(block.d) * kInverseRoot128;
  const float side = residual ? (block.residual[0] & 1 ? 0.5f : -0.5f) * kInverseRoot128 : 0.0f;
  for (int i = 0; i < 128; ++i)
    r[i] = d * (kPolarLevels[polar_code(block, i)] + side * float(kPolarSigns[size_t(i)]));
}

inline void encode_polar(const float* r, bool published, BlockQ4Polar& block) {
  std::memset(&block, 0, sizeof block);
  double squares = 0;
  for (int i = 0; i < 128; ++i) squares += double(r[i]) * double(r[i]);
  const float norm = float(std::sqrt(squares));
  const float to_unit = norm > 1e-10f ? kRoot128 / norm : 0.0f;
  double side = 0;
  float products[32]{}, levels[32]{};
  for (int i = 0; i < 128; ++i) {
    const float v = r[i] * to_unit;
    int code = 0;
    for (float midpoint : kPolarMidpoints) code += midpoint < v;
    const float level = kPolarLevels[code];
    block.codes[i / 2] |= uint8_t(code << (i % 2 * 4));
    side += double(v - level) * kPolarSigns[size_t(i)];
    products[i % 32] += r[i] * level;
    levels[i % 32] += level * level;
  }
  block.residual[0] = side >= 0;
  if (published) {
    block.d = f16_scale(norm);
    return;
  }
  for (int width = 16; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) products[i] += products[i + width], levels[i] += levels[i + width];
  block.d = f16_scale(kRoot128 * products[0] / levels[0]);
  if (norm <= 1e-10f || block.d == 0) std::memset(&block, 0, sizeof block);
}

inline void decode_block(const BlockQ4Polar& block, float* y) { decode_polar(block, false, y); }
inline void encode_block(const float* x, const float* /*importance*/, BlockQ4Polar& block) {
  encode_polar(x, false, block);
}
inline void encode_published(const float* x, BlockQ4Polar& block) { encode_polar(x, true, block); }

}  // namespace kvasir::formats
