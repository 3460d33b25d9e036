// tbq3_tcq: 128 values in the basis kSignedBlock128 (basis.h) along a trellis of 512 states, one f16 scale:
//   r[t] = d * level[state t]       state t = bits 3 t .. 3 t + 8 of `stream`, least significant first
// So symbol o[t] of a value is bits 3 t + 6 .. 3 t + 8, state t = o[t-2] | o[t-1] << 3 | o[t] << 6, and bits
// 0-5 are the two symbols before the first value. Bits 390 and 391 and the last byte are 0. Levels:
// tcq_table.h.
//
// Encode (ours): x[t] = the nearest integer of r[t] / (step |r|), held to [-127, 127]; the path that
// trellis.h's open search finds among the rounded levels; d = sum(r level) / sum(level^2), to nearest f16; a
// scale of 0 clears the block. Each sum has 32 accumulators (t % 32), folded 16-8-4-2-1. Only whole numbers
// choose the path. Encode (published): z = r / |r| in f32, costs in f32 with free ends (a tie goes to the
// lowest predecessor, at the end to the lowest state), d = |r| / |(level[state t])_t|.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/format.h"
#include "formats/rounding.h"
#include "formats/tcq_table.h"

namespace kvasir::formats {

struct BlockTbq3Tcq {
  static constexpr int kValues = 128;
  static constexpr Basis kBasis = Basis::kSignedBlock128;
  static constexpr bool kTcqTable = true;
  uint16_t d;  // f16
  uint8_t stream[49];
  uint8_t zero;
};
static_assert(sizeof(BlockTbq3Tcq) == 52);

inline int tcq_state(const BlockTbq3Tcq& block, int t) {
  uint16_t window;
  std::memcpy(&window, block.stream + 3 * t / 8, sizeof window);
  return window >> (3 * t % 8) & (kTcqStates - 1);
}
// o[-2] | o[-1] << 3, then the symbols of all values.
void put_tcq_symbols(int before, const uint8_t* symbols, BlockTbq3Tcq& block);

inline void decode_tcq(const TcqTable& table, const BlockTbq3Tcq& block, float* y) {
  const float d = f16_to_f32(block.d);
  for (int t = 0; t < 128; ++t) y[t] = table.level[size_t(tcq_state(block, t))] * d;
}
// r without NaN, of magnitudes up to 2^27.
void encode_tcq(const TcqTable& table, const float* r, BlockTbq3Tcq& block);
void encode_tcq_published(const TcqTable& table, const float* r, BlockTbq3Tcq& block);
// The published encoder from the model's own basis: its norm is of x, and it rotates x / |x|.
void encode_tcq_published_from(const TcqTable& table, const float* x, BlockTbq3Tcq& block);

inline void decode_block(const BlockTbq3Tcq& block, float* y) { decode_tcq(own_tcq_table(), block, y); }
inline void encode_block(const float* x, const float* /*importance*/, BlockTbq3Tcq& block) {
  encode_tcq(own_tcq_table(), x, block);
}
inline void encode_published(const float* x, BlockTbq3Tcq& block) {
  encode_tcq_published(own_tcq_table(), x, block);
}

}  // namespace kvasir::formats
