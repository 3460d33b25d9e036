// tbq2_ht, tbq3_ht, tbq4_ht: one head of d values in the basis of head_wide.h, b bits a value along a
// tail-biting trellis (trellis.h), one f16 scale for all of them: y[t] = scale * table[s[t]].
//
// Row: as tbq_h.h, with the symbol of value i where that has its code. Tables (int8, in units of 1 /
// kTrellisUnit of the root mean square): trellis_tables.h. They are odd: table[s + 2^(L-1)] = -1 - table[s].
//
// Encode: x[t] = the nearest integer of r[t] * kTrellisUnit / sqrt(sum r^2 / d), held to [-127, 127]; the
// symbols that the search finds; then scale = sum(r y) / sum(y^2) with y[t] = table[s[t]], to nearest f16. A
// scale of 0 clears the symbols. Each sum has 32 accumulators (t % 32), folded 16-8-4-2-1.
#pragma once
#include <cmath>
#include <cstring>

#include "formats/tbq_h.h"
#include "formats/trellis.h"
#include "formats/trellis_tables.h"

namespace kvasir::formats {

template <int b>
struct BlockTbqHt {
  static constexpr int kValues = 64;
  static constexpr int kTrellisBits = b;
  static constexpr Basis kBasis = Basis::kHeadWide;
  uint8_t codes[8 * b];
};
static_assert(sizeof(BlockTbqHt<3>) == 24);

template <int b>
constexpr const TrellisTable<b>& trellis_table() {
  if constexpr (b == 2)
    return kTrellisTable2;
  else if constexpr (b == 3)
    return kTrellisTable3;
  else
    return kTrellisTable4;
}

// y and -1 - y, the complement of its bits: kernels keep the first half of a table.
template <int b>
constexpr bool odd_table() {
  constexpr int kHalf = Trellis<b>::kStates / 2;
  for (int s = 0; s < kHalf; ++s)
    if (trellis_table<b>().level[s + kHalf] != -1 - trellis_table<b>().level[s]) return false;
  return true;
}
static_assert(odd_table<2>() && odd_table<3>() && odd_table<4>());

template <int b>
void unpack_symbols(const std::byte* row, int d, uint8_t* symbols) {
  for (int i = 0; i < d; i += 8) {
    uint32_t packed = 0;
    std::memcpy(&packed, row + i / 8 * b, b);
    for (int j = 0; j < 8; ++j) symbols[i + j] = uint8_t((packed >> (b * j)) & ((1 << b) - 1));
  }
}

template <int b>
void pack_symbols(const uint8_t* symbols, int d, std::byte* row) {
  for (int i = 0; i < d; i += 8) {
    uint32_t packed = 0;
    for (int j = 0; j < 8; ++j) packed |= uint32_t(symbols[i + j]) << (b * j);
    std::memcpy(row + i / 8 * b, &packed, b);
  }
}

template <int b>
void decode_trellis(const std::byte* row, int d, float* out) {
  uint8_t symbols[kMaxHeadWide];
  uint16_t states[kMaxHeadWide], bits;
  unpack_symbols<b>(row, d, symbols);
  Trellis<b>::states(symbols, d, states);
  std::memcpy(&bits, row + d / 8 * b, sizeof bits);
  const float scale = f16_to_f32(bits);
  for (int i = 0; i < d; ++i) out[i] = scale * float(trellis_table<b>().level[states[i]]);
}

// x as encode_head_finite takes it; returns the scale before its rounding.
template <int b>
float encode_trellis_finite(const float* x, int d, std::byte* row) {
  const int8_t* table = trellis_table<b>().level;
  const size_t code_bytes = size_t(d / 8 * b);
  std::memset(row, 0, code_bytes + kHeadScaleBytes);
  float squares[32]{}, products[32]{}, levels[32]{};
  for (int i = 0; i < d; ++i) squares[i % 32] += x[i] * x[i];
  const float mean = fold(squares) * (1.0f / float(d));  // exact: d is a power of two
  if (mean == 0) return 0;
  const float to_unit = kTrellisUnit / std::sqrt(mean);
  int8_t target[kMaxHeadWide];
  for (int i = 0; i < d; ++i) target[i] = int8_t(nearest_int_in(x[i] * to_unit, -127, 127));
  uint8_t symbols[kMaxHeadWide];
  uint16_t states[kMaxHeadWide];
  trellis_search<b>(target, d, table, symbols);
  Trellis<b>::states(symbols, d, states);
  for (int i = 0; i < d; ++i) {
    const float level = float(table[states[i]]);
    products[i % 32] += x[i] * level;
    levels[i % 32] += level * level;
  }
  const float energy = fold(levels), exact = energy > 0 ? fold(products) / energy : 0.0f;
  const uint16_t scale = f16_scale(exact > 0 ? exact : 0.0f);
  if (scale == 0) return 0;
  pack_symbols<b>(symbols, d, row);
  std::memcpy(row + code_bytes, &scale, sizeof scale);
  return exact;
}

template <int b>
void encode_trellis_tamed(const float* x, int d, std::byte* row) {
  float tamed[kMaxHeadWide];
  for (int i = 0; i < d; ++i) tamed[i] = tame(x[i]);
  encode_trellis_finite<b>(tamed, d, row);
}

}  // namespace kvasir::formats
