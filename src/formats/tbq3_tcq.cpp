#include "formats/tbq3_tcq.h"

#include <cmath>

#include "formats/basis.h"
#include "formats/trellis.h"

namespace kvasir::formats {
namespace {

float fold32(float (&sums)[32]) {
  for (int width = 16; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

float norm_in_order(const float* x) {
  float squares = 0;
  for (int i = 0; i < 128; ++i) squares += x[i] * x[i];
  return std::sqrt(squares);
}

// The cheapest path through z by f32 costs: its symbols, and the state before the first value.
int search_f32(const TcqTable& table, const float* z, uint8_t* symbols) {
  constexpr int kLows = 64;
  float cost[kTcqStates]{}, best[kLows];
  uint8_t from[128][kLows];
  for (int t = 0; t < 128; ++t) {
    for (int low = 0; low < kLows; ++low) {
      int pick = 0;
      for (int p = 1; p < 8; ++p)
        if (cost[low << 3 | p] < cost[low << 3 | pick]) pick = p;
      best[low] = cost[low << 3 | pick];
      from[t][low] = uint8_t(pick);
    }
    for (int s = 0; s < kTcqStates; ++s) {
      const float off = z[t] - table.level[size_t(s)];
      cost[s] = best[s & 63] + off * off;
    }
  }
  int state = 0;
  for (int s = 1; s < kTcqStates; ++s)
    if (cost[s] < cost[state]) state = s;
  for (int t = 127; t >= 0; --t) {
    symbols[t] = uint8_t(state >> 6);
    state = (state & 63) << 3 | from[t][state & 63];
  }
  return state;
}

void encode_unit(const TcqTable& table, float norm, const float* z, BlockTbq3Tcq& block) {
  uint8_t symbols[128];
  const int start = search_f32(table, z, symbols);
  std::memset(&block, 0, sizeof block);
  put_tcq_symbols(start >> 3 & 63, symbols, block);
  float squares = 0;
  for (int t = 0; t < 128; ++t) {
    const float level = table.level[size_t(tcq_state(block, t))];
    squares += level * level;
  }
  const float levels = std::sqrt(squares);
  block.d = f16_scale(levels <= 1e-10f ? norm : norm / levels);
}

}  // namespace

void put_tcq_symbols(int before, const uint8_t* symbols, BlockTbq3Tcq& block) {
  std::memset(block.stream, 0, sizeof block.stream);
  block.stream[0] = uint8_t(before);
  for (int t = 0; t < 128; ++t) {
    const int at = 3 * t + 6, bits = symbols[t] << (at % 8);
    block.stream[at / 8] |= uint8_t(bits);
    if (at % 8 > 5) block.stream[at / 8 + 1] |= uint8_t(bits >> 8);
  }
}

void encode_tcq(const TcqTable& table, const float* r, BlockTbq3Tcq& block) {
  std::memset(&block, 0, sizeof block);
  float sums[32]{}, products[32]{}, energy[32]{};
  for (int i = 0; i < 128; ++i) sums[i % 32] += r[i] * r[i];
  const float squares = fold32(sums);
  if (squares == 0) return;
  const float to_step = 1.0f / table.step / std::sqrt(squares);
  int8_t target[128];
  for (int i = 0; i < 128; ++i) target[i] = int8_t(nearest_int_in(r[i] * to_step, -127, 127));
  uint8_t symbols[128];
  const int start = trellis_search_open(target, 128, table.rounded.data(), symbols);
  put_tcq_symbols(mirrored_state(start) >> 3, symbols, block);
  for (int i = 0; i < 128; ++i) {
    const float level = table.level[size_t(tcq_state(block, i))];
    products[i % 32] += r[i] * level;
    energy[i % 32] += level * level;
  }
  const float levels = fold32(energy), exact = levels > 0 ? fold32(products) / levels : 0.0f;
  block.d = f16_scale(exact > 0 ? exact : 0.0f);
  if (block.d == 0) std::memset(&block, 0, sizeof block);
}

void encode_tcq_published(const TcqTable& table, const float* r, BlockTbq3Tcq& block) {
  const float norm = norm_in_order(r), inverse = norm > 1e-10f ? 1.0f / norm : 0.0f;
  float z[128];
  for (int i = 0; i < 128; ++i) z[i] = r[i] * inverse;
  encode_unit(table, norm, z, block);
}

void encode_tcq_published_from(const TcqTable& table, const float* x, BlockTbq3Tcq& block) {
  const float norm = norm_in_order(x), inverse = norm > 1e-10f ? 1.0f / norm : 0.0f;
  float z[128];
  for (int i = 0; i < 128; ++i) z[i] = x[i] * inverse;
  to_basis(Basis::kSignedBlock128, kKeys, z, z, 128);
  encode_unit(table, norm, z, block);
}

}  // namespace kvasir::formats
