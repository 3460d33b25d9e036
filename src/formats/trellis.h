// The trellis of tbq2_ht, tbq3_ht, tbq4_ht: which symbols bring a row closest to a table, by whole numbers
// only, so that every instruction set and device finds the same ones.
//
// State after value t: s[t] = ((s[t-1] << b) | o[t]) mod 2^L with o[t] the symbol (b bits) of value t, L = 8
// for b = 2 and 9 for 3 and 4. A row bites its tail: s[-1] is what the last symbols leave, s[-1] = s[d-1].
// Value t is table[s[t]].
//
// Search (Viterbi): x[t] in [-127, 127]; the cost of a path is the sum of (x[t] - table[s[t]])^2, in 16 bits
// that saturate.
//   step     best[g] = min over p of cost[p 2^(L-b) + g], the lowest p of equals, for the 2^(L-b) groups g of
//   states that
//            share their last L - b bits; then cost'[g 2^b + o] = best[g] + (x - table[g 2^b + o])^2
//   ageing   after every 16th step of a pass the smallest cost is taken off all (stopping at 0)
//   pass 1   values d-32 .. d-1, 0 .. 15 from all costs 0; the cheapest end (the lowest state of equals),
//   followed back to
//            after value d-1, is the seam
//   pass 2   values 0 .. d-1 from cost 0 for the seam and 65535 for every other state; the path that ends in
//   the seam
// Costs and tables: research of the bit-shift trellis is cited in docs/formats.md.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvasir::formats {

inline constexpr int kTrellisBefore = 32, kTrellisAfter = 16, kTrellisAgeing = 16, kMaxTrellis = 512;

template <int b>
struct Trellis {
  static constexpr int kBits = b;
  static constexpr int kStateBits = b == 2 ? 8 : 9;
  static constexpr int kStates = 1 << kStateBits, kGroups = 1 << (kStateBits - b), kBranches = 1 << b;

  // states[t] of a row's symbols.
  static void states(const uint8_t* symbols, int d, uint16_t* states) {
    uint32_t s = 0;
    for (int t = d - 8; t < d; ++t) s = (s << b | symbols[t]) & (kStates - 1);
    for (int t = 0; t < d; ++t) states[t] = uint16_t(s = (s << b | symbols[t]) & (kStates - 1));
  }

  static void search(const int8_t* x, int d, const int8_t* table, uint8_t* symbols) {
    uint8_t from[kMaxTrellis * size_t(kGroups)];
    int32_t cost[kStates]{};
    int n = 0;
    for (int t = d - kTrellisBefore; t < d + kTrellisAfter; ++t, ++n)
      step(cost, x[t % d], table, from + n * kGroups, n);
    int seam = 0;
    for (int s = 1; s < kStates; ++s)
      if (cost[s] < cost[seam]) seam = s;
    while (n > kTrellisBefore) seam = back(seam, from + --n * kGroups);
    for (int32_t& c : cost) c = 65535;
    cost[seam] = 0;
    for (int t = 0; t < d; ++t) step(cost, x[t], table, from + t * kGroups, t);
    for (int t = d - 1, s = seam; t >= 0; --t) {
      symbols[t] = uint8_t(s & (kBranches - 1));
      s = back(s, from + t * kGroups);
    }
  }

  // The same by one pass with free ends, from all costs 0 to the cheapest end (the lowest state of equals): no ring.
  // Returns the state before the first value.
  static int search_open(const int8_t* x, int d, const int8_t* table, uint8_t* symbols) {
    uint8_t from[kMaxTrellis * size_t(kGroups)];
    int32_t cost[kStates]{};
    for (int t = 0; t < d; ++t) step(cost, x[t], table, from + t * kGroups, t);
    int s = 0;
    for (int other = 1; other < kStates; ++other)
      if (cost[other] < cost[s]) s = other;
    for (int t = d - 1; t >= 0; --t) {
      symbols[t] = uint8_t(s & (kBranches - 1));
      s = back(s, from + t * kGroups);
    }
    return s;
  }

 private:
  static int back(int s, const uint8_t* from) { return from[s >> b] * kGroups + (s >> b); }

  // Costs in 32 bits: compilers vectorise their comparisons for every CPU.
  static void step(int32_t* cost, int x, const int8_t* table, uint8_t* from, int index) {
    int32_t best[kGroups], pick[kGroups]{};
    std::memcpy(best, cost, sizeof best);
    for (int p = 1; p < kBranches; ++p)
      for (int g = 0; g < kGroups; ++g) {
        const bool less = cost[p * kGroups + g] < best[g];
        best[g] = less ? cost[p * kGroups + g] : best[g];
        pick[g] = less ? p : pick[g];
      }
    for (int g = 0; g < kGroups; ++g) from[g] = uint8_t(pick[g]);
    for (int g = 0; g < kGroups; ++g)
      for (int o = 0; o < kBranches; ++o) {
        const int off = x - table[g * kBranches + o], sum = best[g] + off * off;
        cost[g * kBranches + o] = sum < 65535 ? sum : 65535;
      }
    if (index % kTrellisAgeing != kTrellisAgeing - 1) return;
    int32_t least = 65535;
    for (int s = 0; s < kStates; ++s) least = cost[s] < least ? cost[s] : least;
    for (int s = 0; s < kStates; ++s) cost[s] -= least;
  }
};

// Trellis<b>::search and Trellis<3>::search_open built for the widest vectors of this CPU: the same whole
// numbers.
template <int b>
void trellis_search(const int8_t* x, int d, const int8_t* table, uint8_t* symbols);
template <>
void trellis_search<2>(const int8_t* x, int d, const int8_t* table, uint8_t* symbols);
template <>
void trellis_search<3>(const int8_t* x, int d, const int8_t* table, uint8_t* symbols);
template <>
void trellis_search<4>(const int8_t* x, int d, const int8_t* table, uint8_t* symbols);
int trellis_search_open(const int8_t* x, int d, const int8_t* table, uint8_t* symbols);

}  // namespace kvasir::formats
