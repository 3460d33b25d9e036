// The search of formats/trellis.h by a warp: the scalar search's path, from another order of the same sums.
//
// A lane has kOwn groups of states that share a past. best[g] is the least cost of a path that goes on from
// group g; a step makes the costs of all states that follow, (x - level)^2 more, and keeps the least of those
// that end in each group: all that travels between lanes is best[]. A cost that saturates does so after that
// choice, which is the same: the least of saturated costs is the saturated least, and of equals the first.
//
// Costs are f32 around 2^(23 - b), where the last b bits of the mantissa are binary places: they say which
// predecessor a cost came through, so that the least of several is one instruction, and the lowest of equals.
// Whole numbers throughout, exact.
#pragma once
#include "backends/cuda/kernels/kv_forms/tables.cuh"

namespace kvasir::cuda {

// Shared memory of a warp that encodes a row of up to D values.
template <int D>
struct TrellisScratch {
  alignas(16) float best[2][128];
  alignas(16) float target[D];
  alignas(16) uint16_t row[D];  // the row itself, where the kernel puts it
  uint8_t code[D];
  uint8_t from[D + 1][32];  // by step and lane: the predecessors of its groups, 4 bits each
};

template <int b>
struct WarpTrellis {
  using T = formats::Trellis<b>;
  static constexpr int kGroups = T::kGroups, kBranches = T::kBranches, kOwn = kGroups / 32,
                       kGroupBits = T::kStateBits - b;
  static_assert(kOwn == 1 || kOwn == 2);
  static constexpr uint32_t kZero = uint32_t(127 + 23 - b) << 23, kMost = kZero + (65535u << b),
                            kPick = (1u << b) - 1;
  // Groups whose costs a lane needs follow each other, `kColumns` apart in number; rows of them are padded so
  // that lanes meet in no bank.
  static constexpr int kColumns = kGroups / kBranches, kRow = kBranches + 4;
  static_assert(kColumns * kRow <= 128);
  struct Levels {
    float v[kBranches][kOwn];
  };
  struct Keys {
    uint32_t v[kOwn];  // cost and predecessor
  };

  static KVASIR_CODEC void load_levels(const Warp& warp, const int8_t* table, PerLane<Levels>& levels) {
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int p = 0; p < kBranches; ++p) KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) levels[lane].v[p][i] = float(table[p * kGroups + lane * kOwn + i]);
    });
  }

  // Where the best cost of group g stands, and which predecessor it is to those that read it.
  static KVASIR_CODEC int place(int g) { return g % kColumns * kRow + g / kColumns; }
  static KVASIR_CODEC uint32_t tagged(uint32_t key, int g) { return (key & ~kPick) | uint32_t(g / kColumns); }

  // All costs 0, or 65535 but that of state `zero`.
  static KVASIR_CODEC void start(const Warp& warp, float* best, uint8_t* from, int zero) {
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const int g = lane * kOwn + i;
        const bool least = zero < 0 || g == zero % kGroups;
        best[place(g)] = bits_to_float(tagged(least ? kZero : kMost, g));
      }
      from[lane] = 0;  // read where all costs were 0
    });
    warp.sync();
  }

  // Costs after value x, and the least of each group.
  static KVASIR_CODEC void choose(const Warp& warp, const float* best, float x, const PerLane<Levels>& levels,
                                  PerLane<Keys>& keys) {
    warp.each([&](int lane) {
      const float* own = best + (lane * kOwn >> b) * kRow;
      float cost[kBranches][kOwn];
      KVASIR_UNROLL
      for (int p = 0; p < kBranches; p += 4) {
        float four[4];
        load_floats(own + p, four);
        KVASIR_UNROLL
        for (int j = 0; j < 4; ++j) KVASIR_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          const float off = x - levels[lane].v[p + j][i];
          cost[p + j][i] = multiply_add(off, off, four[j]);
        }
      }
      KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        KVASIR_UNROLL
        for (int distance = 1; distance < kBranches; distance *= 2) KVASIR_UNROLL
        for (int p = 0; p < kBranches; p += 2 * distance)
          cost[p][i] = lesser(cost[p][i], cost[p + distance][i]);
        keys[lane].v[i] = float_bits(lesser(cost[0][i], bits_to_float(kMost)));
      }
    });
  }

  static KVASIR_CODEC void keep(const Warp& warp, float* best, uint8_t* from, const PerLane<Keys>& keys) {
    warp.each([&](int lane) {
      uint32_t picks = 0;
      KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const int g = lane * kOwn + i;
        best[place(g)] = bits_to_float(tagged(keys[lane].v[i], g));
        picks |= (keys[lane].v[i] & kPick) << (4 * i);
      }
      from[lane] = uint8_t(picks);
    });
    warp.sync();
  }

  static KVASIR_CODEC void age(const Warp& warp, PerLane<Keys>& keys) {
    PerLane<uint32_t> own;
    warp.each([&](int lane) {
      own[lane] = keys[lane].v[0];
      if constexpr (kOwn == 2) own[lane] = keys[lane].v[1] < own[lane] ? keys[lane].v[1] : own[lane];
    });
    const uint32_t least = (warp.least(own) & ~kPick) - kZero;
    warp.each([&](int lane) {
      KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) keys[lane].v[i] -= least;
    });
  }

  static KVASIR_CODEC int back(int s, const uint8_t* from) {
    const int g = s >> b;
    return (from[g / kOwn] >> (g % kOwn * 4) & 15) * kGroups + g;
  }

  // The cheapest state, the lowest of equals.
  static KVASIR_CODEC int cheapest(const Warp& warp, const PerLane<Keys>& keys) {
    PerLane<uint32_t> own;
    warp.each([&](int lane) {
      own[lane] = ~0u;
      KVASIR_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const uint32_t key = (keys[lane].v[i] - kZero) << kGroupBits | uint32_t(lane * kOwn + i);
        own[lane] = key < own[lane] ? key : own[lane];
      }
    });
    // Predecessor and group are the state's upper and lower bits.
    return int(warp.least(own) & (T::kStates - 1));
  }

  // Values first, first + 1, ... of the ring of d, n of them (a multiple of 16, as d and `first` are).
  template <int D>
  static KVASIR_CODEC void walk(const Warp& warp, TrellisScratch<D>& scratch, const PerLane<Levels>& levels,
                                int first, int n, int d, PerLane<Keys>& keys) {
    static_assert(formats::kTrellisAgeing == 16 && formats::kTrellisBefore % 16 == 0);
    KVASIR_NO_UNROLL
    for (int i = 0; i < n; i += 16) {
      const float* target = scratch.target + (first + i < d ? first + i : first + i - d);
      KVASIR_NO_UNROLL
      for (int j = 0; j < 16; j += 4) {
        float x[4];
        load_floats(target + j, x);
        KVASIR_UNROLL
        for (int k = 0; k < 4; ++k) {
          choose(warp, scratch.best[k % 2], x[k], levels, keys);
          if (k == 3 && j == 12) age(warp, keys);
          keep(warp, scratch.best[1 - k % 2], scratch.from[i + j + k + 1], keys);
        }
      }
    }
  }

  // Symbols of a path that ends in `state` after value d - 1, into scratch.code; returns the state before the
  // first value. Each lane walks back its own part, from where a walk from anywhere kMeet values on has come
  // to: paths merge. When one has not, every part is walked from the end.
  template <int D>
  static KVASIR_CODEC int trace(const Warp& warp, TrellisScratch<D>& scratch, int state, int d) {
    constexpr int kMeet = 32;
    const int part = d / 32;
    PerLane<int> begin, end;
    const auto walk_part = [&](int first, int last, int s) {
      for (int t = last; t >= first; --t) {
        scratch.code[t] = uint8_t(s & (kBranches - 1));
        s = back(s, scratch.from[t]);
      }
      return s;
    };
    warp.each([&](int lane) {
      const int last = lane * part + part - 1;
      int t = last + kMeet < d - 1 ? last + kMeet : d - 1, s = t == d - 1 ? state : 0;
      for (; t > last; --t) s = back(s, scratch.from[t]);
      end[lane] = s;
      begin[lane] = walk_part(lane * part, last, s);
    });
    const PerLane<int> after = warp.of_next(begin);
    PerLane<bool> apart;
    warp.each([&](int lane) { apart[lane] = lane < 31 && after[lane] != end[lane]; });
    warp.sync();
    if (warp.ballot(apart) == 0) return warp.of(begin, 0);
    warp.each([&](int lane) {
      if (lane == 0) begin[lane] = walk_part(0, d - 1, state);
    });
    warp.sync();
    return warp.of(begin, 0);
  }

  // Trellis::search.
  template <int D>
  static KVASIR_CODEC void search(const Warp& warp, TrellisScratch<D>& scratch, int d) {
    PerLane<Levels> levels;
    PerLane<Keys> keys;
    load_levels(warp, state_levels<b>(), levels);
    start(warp, scratch.best[0], scratch.from[0], -1);
    constexpr int kAll = formats::kTrellisBefore + formats::kTrellisAfter;
    walk(warp, scratch, levels, d - formats::kTrellisBefore, kAll, d, keys);
    int seam = cheapest(warp, keys);
    for (int n = kAll; n > formats::kTrellisBefore;) seam = back(seam, scratch.from[--n]);
    warp.sync();
    start(warp, scratch.best[0], scratch.from[0], seam);
    walk(warp, scratch, levels, 0, d, d, keys);
    trace(warp, scratch, seam, d);
  }

  // Trellis::search_open among the levels of `table`.
  template <int D>
  static KVASIR_CODEC int search_open(const Warp& warp, TrellisScratch<D>& scratch, const int8_t* table,
                                      int d) {
    PerLane<Levels> levels;
    PerLane<Keys> keys;
    load_levels(warp, table, levels);
    start(warp, scratch.best[0], scratch.from[0], -1);
    walk(warp, scratch, levels, 0, d, d, keys);
    return trace(warp, scratch, cheapest(warp, keys), d);
  }
};

}  // namespace kvasir::cuda
