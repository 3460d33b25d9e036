// The int8 consumer: one template for every weight type W (types/) and vector type V (simd_*.h).
//   value(row, o, block) = scale * float(sum u * a - offset * sum a)  [+ scale, + min for the second half and
//   for types with minima, by FMA, in the order scale 0, scale 1, min 0, min 1];   acc = FMA(value, da, acc),
//   blocks in rising order.
// Integer sums are exact, so the bits depend on that float order alone: the same for every V, row count and
// path.
#pragma once
#include <utility>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"
#include "backends/cpu/kernels/matmul/variant.h"

namespace kvasir::cpu::matmul {

template <class V, class W>
struct Int8Tile {
  using Bytes = typename V::Bytes;
  using Floats = typename V::Floats;
  static constexpr int kGroups = V::kGroups;  // lane groups whose codes stay in registers
  static constexpr int kHalves = W::kHalves ? 2 : 1;
  static constexpr int kSetRows = kGroups * V::kLanes;
  // Top-aligned codes carry a factor 2^kShift, taken out of the scale (exact).
  static constexpr int kShift = V::kTopAligned && W::kOffset != 0 && W::kTable == nullptr ? 8 - W::kBits : 0;

  // Codes and scales of one block for kSetRows rows of the panel.
  struct Set {
    Bytes codes[kGroups][8];
    Scales<V> scales[kGroups];
  };

  // Rows lane .. lane + kSetRows of block j; lane / 16 == kHalf.
  template <int kHalf>
  [[gnu::always_inline]] static void load_set(const std::byte* unit, int j, int lane, Set& set) {
    const std::byte* planes = unit + W::planes_offset(j);
    [&]<int... i>(std::integer_sequence<int, i...>) [[gnu::always_inline]] {
      ((set.codes[i / 8][i % 8] = load_one<kHalf, i / 8, i % 8>(planes, lane)), ...);
    }
    (std::make_integer_sequence<int, 8 * kGroups>());
    for (int g = 0; g < kGroups; ++g) {
      Scales<V>& s = set.scales[g];
      W::template scales<V>(unit, j, lane + g * V::kLanes, s);
      if constexpr (kShift > 0)
        for (int h = 0; h < kHalves; ++h) s.scale[h] = V::mul(s.scale[h], V::set1(1.0f / (1 << kShift)));
    }
  }

  template <int kHalf, int g, int j>
  [[gnu::always_inline]] static Bytes load_one(const std::byte* planes, int lane) {
    constexpr int z = (kHalf + (V::kLanes == 16 ? g : 0)) * 8 + j;
    const int offset = lane % 16 * 4 + (V::kLanes == 16 ? 0 : g * V::kBytes);
    Bytes code = load_codes<V, W::kLow, W::kHigh, kShift, z>(planes, offset);
    if constexpr (W::kTable != nullptr) code = V::lookup(W::kTable, code);
    return V::template prepare<W>(code);
  }

  // Values of rows i .. i + R for one block, before the activation scale.
  template <int R>
  [[gnu::always_inline]] static void values(const Set& set, const ActivationBlock& a, int n_rows, int i,
                                            Floats (&out)[R][kGroups]) {
    typename V::Ints sum[kHalves][R][kGroups];
    for (int h = 0; h < kHalves; ++h)
      for (int r = 0; r < R; ++r)
        for (int g = 0; g < kGroups; ++g)
          sum[h][r][g] = V::template start<W>((W::kHalves ? a.neg_half + h * n_rows : a.neg) + i + r);
    const int8_t* codes = a.codes + i * kBlock;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Bytes four = V::broadcast4(codes + r * kBlock + 4 * j);
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; ++g) {
          auto& s = sum[W::kHalves ? j / 4 : 0][r][g];
          s = V::template dot<W>(s, set.codes[g][j], four);
        }
      }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) {
        const Scales<V>& s = set.scales[g];
        Floats t = V::mul(V::to_float(sum[0][r][g]), s.scale[0]);
        if constexpr (W::kHalves) t = V::fma(V::to_float(sum[kHalves - 1][r][g]), s.scale[1], t);
        if constexpr (W::kMin && !W::kHalves) t = V::fma(s.min[0], V::broadcast(a.sum + i + r), t);
        if constexpr (W::kMin && W::kHalves) {
          t = V::fma(s.min[0], V::broadcast(a.sum_half + i + r), t);
          t = V::fma(s.min[1], V::broadcast(a.sum_half + n_rows + i + r), t);
        }
        out[r][g] = t;
      }
  }

  template <int R>
  [[gnu::always_inline]] static void add_rows(const Set& set, const ActivationBlock& a, int rows_laid_out,
                                              int i, float* acc) {
    Floats t[R][kGroups];
    values<R>(set, a, rows_laid_out, i, t);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) {
        float* p = acc + r * kPanelRows + g * V::kLanes;
        V::store(p, V::fma(t[r][g], V::broadcast(a.scale + i + r), V::load_floats(p)));
      }
  }

  template <int kHalf>
  [[gnu::always_inline]] static void add_block(const std::byte* unit, int j, int lane,
                                               const ActivationBlock& a, int rows_laid_out, int row_begin,
                                               int n_rows, float* acc) {
    constexpr int kStep = W::kHalves ? 1 : V::kRowStep;
    Set set;
    load_set<kHalf>(unit, j, lane, set);
    int i = 0;
    for (; i + kStep <= n_rows; i += kStep)
      add_rows<kStep>(set, a, rows_laid_out, row_begin + i, acc + i * kPanelRows + lane);
    if constexpr (kStep > 1)
      for (; i < n_rows; ++i) add_rows<1>(set, a, rows_laid_out, row_begin + i, acc + i * kPanelRows + lane);
  }

  // Many rows: accumulators in acc (L1), codes in registers, activations streamed.
  static void many_rows(const std::byte* panel, const Activations& x, int row_begin, int n_rows, float* acc) {
    for (int i = 0; i < n_rows * kPanelRows; ++i) acc[i] = 0;
    const int n_blocks = int(x.n_in / kBlock);
    const size_t stride = activation_stride(x.n_rows);
    for (int b = 0; b < n_blocks; ++b) {
      const std::byte* unit = panel + size_t(b / W::kUnitBlocks) * W::kUnitBytes;
      const int j = b % W::kUnitBlocks;
      const ActivationBlock a(x.packed + b * stride, x.n_rows);
      for (int line = 0; line < W::kUnitBytes / W::kUnitBlocks; line += 64)
        V::prefetch(unit + W::block_offset(j) + 2 * (W::kUnitBytes / W::kUnitBlocks) + line);
      for (int lane = 0; lane < 16; lane += kSetRows)
        add_block<0>(unit, j, lane, a, x.n_rows, row_begin, n_rows, acc);
      if constexpr (kSetRows < kPanelRows)
        for (int lane = 16; lane < 32; lane += kSetRows)
          add_block<1>(unit, j, lane, a, x.n_rows, row_begin, n_rows, acc);
    }
  }

  // Few rows: accumulators in registers, weights streamed with prefetch. Needs kSetRows == 32.
  template <int R>
  static void few_rows(const std::byte* panel, const Activations& x, int row_begin, float* acc) {
    constexpr int kAhead = 4096;
    const size_t stride = activation_stride(x.n_rows);
    const int n_units = int(x.n_in / (kBlock * W::kUnitBlocks));
    const std::byte* act = x.packed;
    Floats out[R][kGroups];
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < kGroups; ++g) out[r][g] = V::zero();
    for (int u = 0; u < n_units; ++u, panel += W::kUnitBytes) {
      for (int j = 0; j < W::kUnitBlocks; ++j, act += stride) {
        constexpr int kShare = W::kUnitBytes / W::kUnitBlocks;
        for (int line = 0; line < kShare; line += 64) V::prefetch(panel + j * kShare + kAhead + line);
        const ActivationBlock a(act, x.n_rows);
        Set set;
        load_set<0>(panel, j, 0, set);
        Floats t[R][kGroups];
        values<R>(set, a, x.n_rows, row_begin, t);
        for (int r = 0; r < R; ++r)
          for (int g = 0; g < kGroups; ++g)
            out[r][g] = V::fma(t[r][g], V::broadcast(a.scale + row_begin + r), out[r][g]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < kGroups; ++g) V::store(acc + r * kPanelRows + g * V::kLanes, out[r][g]);
  }

  static void run(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                  float* acc) {
    const size_t panel_bytes = size_t(w.n_in / (kBlock * W::kUnitBlocks)) * W::kUnitBytes;
    const std::byte* data = w.data.data() + size_t(panel) * panel_bytes;
    if constexpr (V::kFewRows > 0) {
      switch (n_rows) {
        case 1:
          return few_rows<1>(data, x, row_begin, acc);
        case 2:
          return few_rows<2>(data, x, row_begin, acc);
        case 3:
          return few_rows<3>(data, x, row_begin, acc);
        case 4:
          return few_rows<4>(data, x, row_begin, acc);
        default:
          break;
      }
    }
    many_rows(data, x, row_begin, n_rows, acc);
  }
};

}  // namespace kvasir::cpu::matmul
