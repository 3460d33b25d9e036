// The search of formats/trellis.h by a warp: a lane has the states that follow from its own groups, costs lie
// in shared memory twice, so that a step needs one barrier. Integers throughout: the scalar search's path.
#pragma once
#include "backends/cuda/kernels/kv_forms/tables.cuh"

namespace kvasir::cuda {

// Shared memory of a warp that encodes a row of up to D values.
template <int D>
struct TrellisScratch {
  alignas(16) uint16_t cost[2][512];
  alignas(16) uint16_t row[D];  // the row itself, where the kernel puts it
  int8_t target[D];
  uint8_t code[D];
  uint8_t from[D][32];  // by step and lane: the predecessors of its groups, 4 bits each
};

template <int b>
struct WarpTrellis {
  using T = formats::Trellis<b>;
  static constexpr int kGroups = T::kGroups, kBranches = T::kBranches, kOwn = kGroups / 32,
                       kStatesEach = T::kStates / 32;
  static_assert(kOwn == 1 || kOwn == 2);
  struct States {
    int v[kStatesEach];
  };
  struct Levels {
    int v[kStatesEach], square[kStatesEach];
  };

  static KVASIR_CODEC void load_levels(const Warp& warp, const int8_t* table, PerLane<Levels>& levels) {
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i) {
        const int level = table[lane * kStatesEach + i];
        levels[lane].v[i] = level;
        levels[lane].square[i] = level * level;
      }
    });
  }

  // All costs `all`, but that of state `zero` (none when negative).
  static KVASIR_CODEC void start(const Warp& warp, uint16_t* cost, uint16_t all, int zero) {
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i) {
        const int s = lane * kStatesEach + i;
        cost[s] = s == zero ? uint16_t(0) : all;
      }
    });
    warp.sync();
  }

  // Of the n predecessors of groups 2 m and 2 m + 1 the cheapest, the lowest of equals:
  // costs in the halves of a word, and which in the nibbles of `picks`.
  template <int n>
  static KVASIR_CODEC uint32_t choose(const uint16_t* cost, int m, uint32_t& picks) {
    uint32_t best[n], low[n], high[n];
    KVASIR_UNROLL
    for (int p = 0; p < n; ++p) {
      best[p] = load_pair(cost + p * kGroups + 2 * m);
      low[p] = high[p] = uint32_t(p);
    }
    KVASIR_UNROLL
    for (int distance = 1; distance < n; distance *= 2) KVASIR_UNROLL
    for (int p = 0; p < n; p += 2 * distance) {
      bool in_high, in_low;
      best[p] = least_halves(best[p], best[p + distance], in_high, in_low);
      low[p] = in_low ? low[p] : low[p + distance];
      high[p] = in_high ? high[p] : high[p + distance];
    }
    picks = low[0] | high[0] << 4;
    return best[0];
  }

  // The same of all predecessors of a lane's groups; of one group in a whole word, as cost and predecessor in
  // one number.
  static KVASIR_CODEC uint32_t choose_all(const uint16_t* cost, int lane, uint32_t& picks) {
    if constexpr (kOwn == 2) return choose<kBranches>(cost, lane, picks);
    uint32_t key[kBranches];
    KVASIR_UNROLL
    for (int p = 0; p < kBranches; ++p) key[p] = uint32_t(cost[p * kGroups + lane]) << 4 | uint32_t(p);
    KVASIR_UNROLL
    for (int distance = 1; distance < kBranches; distance *= 2) KVASIR_UNROLL
    for (int p = 0; p < kBranches; p += 2 * distance)
      key[p] = key[p + distance] < key[p] ? key[p + distance] : key[p];
    picks = key[0] & 15;
    return key[0] >> 4;
  }

  static KVASIR_CODEC void step(const Warp& warp, const uint16_t* cost, uint16_t* next, int x,
                                const PerLane<Levels>& levels, uint8_t* from, int index) {
    PerLane<States> sums;
    warp.each([&](int lane) {
      uint32_t picks;
      const uint32_t best = choose_all(cost, lane, picks);
      from[lane] = uint8_t(picks);
      const int own[2] = {int(best & 0xffff) + x * x, int(best >> 16) + x * x};
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i)  // (x - level)^2 as level (-2 x) + level^2, and x^2 above
        sums[lane].v[i] =
            least_sum(levels[lane].v[i] * (-2 * x) + levels[lane].square[i], own[i / kBranches], 65535);
    });
    if (index % formats::kTrellisAgeing == formats::kTrellisAgeing - 1) age(warp, sums);
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; i += 8) {
        uint32_t words[4];
        KVASIR_UNROLL
        for (int j = 0; j < 4; ++j)
          words[j] = uint32_t(sums[lane].v[i + 2 * j]) | uint32_t(sums[lane].v[i + 2 * j + 1]) << 16;
        store_four(next + lane * kStatesEach + i, words);
      }
    });
    warp.sync();
  }

  static KVASIR_CODEC void age(const Warp& warp, PerLane<States>& sums) {
    PerLane<uint32_t> own;
    warp.each([&](int lane) {
      uint32_t least = 65535;
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i)
        least = uint32_t(sums[lane].v[i]) < least ? uint32_t(sums[lane].v[i]) : least;
      own[lane] = least;
    });
    const int least = int(warp.least(own));
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i) sums[lane].v[i] -= least;
    });
  }

  static KVASIR_CODEC int back(int s, const uint8_t* from) {
    const int g = s >> b;
    return (from[g / kOwn] >> (g % kOwn * 4) & 15) * kGroups + g;
  }

  // The cheapest state, the lowest of equals.
  static KVASIR_CODEC int cheapest(const Warp& warp, const uint16_t* cost) {
    PerLane<uint32_t> own;
    warp.each([&](int lane) {
      uint32_t least = ~0u;
      KVASIR_UNROLL
      for (int i = 0; i < kStatesEach; ++i) {
        const int s = lane * kStatesEach + i;
        const uint32_t key = uint32_t(cost[s]) << 9 | uint32_t(s);
        least = key < least ? key : least;
      }
      own[lane] = least;
    });
    return int(warp.least(own) & 511);
  }

  // Values first, first + 1, ... of the ring of d, n of them; returns which half has the costs.
  template <int D>
  static KVASIR_CODEC int walk(const Warp& warp, TrellisScratch<D>& scratch, const PerLane<Levels>& levels,
                               int first, int n, int d) {
    for (int i = 0; i < n; ++i) {
      const int t = first + i < d ? first + i : first + i - d;
      step(warp, scratch.cost[i % 2], scratch.cost[1 - i % 2], scratch.target[t], levels, scratch.from[i], i);
    }
    return n % 2;
  }

  // Symbols of a path that ends in `state` after value d - 1, into scratch.code; returns the state before the
  // first value.
  template <int D>
  static KVASIR_CODEC int trace(const Warp& warp, TrellisScratch<D>& scratch, int state, int d) {
    for (int t = d - 1; t >= 0; --t) {  // every lane walks it, lane 0 stores
      warp.each([&](int lane) {
        if (lane == 0) scratch.code[t] = uint8_t(state & (kBranches - 1));
      });
      state = back(state, scratch.from[t]);
    }
    warp.sync();
    return state;
  }

  // Trellis::search.
  template <int D>
  static KVASIR_CODEC void search(const Warp& warp, TrellisScratch<D>& scratch, int d) {
    PerLane<Levels> levels;
    load_levels(warp, state_levels<b>(), levels);
    start(warp, scratch.cost[0], 0, -1);
    constexpr int kAll = formats::kTrellisBefore + formats::kTrellisAfter;
    int now = walk(warp, scratch, levels, d - formats::kTrellisBefore, kAll, d);
    int seam = cheapest(warp, scratch.cost[now]);
    for (int n = kAll; n > formats::kTrellisBefore;) seam = back(seam, scratch.from[--n]);
    warp.sync();
    start(warp, scratch.cost[0], 65535, seam);
    walk(warp, scratch, levels, 0, d, d);
    trace(warp, scratch, seam, d);
  }

  // Trellis::search_open among the levels of `table`.
  template <int D>
  static KVASIR_CODEC int search_open(const Warp& warp, TrellisScratch<D>& scratch, const int8_t* table,
                                      int d) {
    PerLane<Levels> levels;
    load_levels(warp, table, levels);
    start(warp, scratch.cost[0], 0, -1);
    const int now = walk(warp, scratch, levels, 0, d, d);
    return trace(warp, scratch, cheapest(warp, scratch.cost[now]), d);
  }
};

}  // namespace kvasir::cuda
