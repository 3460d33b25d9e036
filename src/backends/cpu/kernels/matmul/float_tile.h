// The float consumer: y = FMA chain over k in rising order, one chain an output, for every weight type W and
// vector type V.
#pragma once
#include "backends/cpu/kernels/matmul/types/floats.h"
#include "backends/cpu/kernels/matmul/variant.h"
#include "base/mutation.h"

namespace kvasir::cpu::matmul {

template <class V, class W>
struct FloatTile {
  using Floats = typename V::Floats;
  static constexpr int kGroups = V::kFloatGroups;
  static constexpr int kSetRows = kGroups * V::kLanes;

  template <int R, bool odd>
  [[gnu::always_inline]] static void step(const std::byte* panel, const float* const (&x)[R], int64_t k,
                                          int lane, Floats (&sum)[R][kGroups]) {
    Floats w[kGroups];
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) w[g] = W::template load<V, odd>(panel, k, lane + g * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Floats a = V::broadcast(x[r] + k);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) sum[r][g] = V::fma(w[g], a, sum[r][g]);
    }
  }

  // R rows against kSetRows output rows from `lane` on.
  template <int R>
  static void rows(const std::byte* panel, const float* x0, int64_t stride, int64_t n_in, int lane,
                   float* acc) {
    const float* x[R];
    for (int r = 0; r < R; ++r) x[r] = x0 + r * stride;
    Floats sum[R][kGroups];
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < kGroups; ++g) sum[r][g] = V::zero();
    if (mutated(Mutation::kLastInputs)) n_in -= 2;
    int64_t k = 0;
    for (; k + 2 <= n_in; k += 2) {
      if constexpr (R <= 2)
        for (int line = 0; line < W::kValueBytes; ++line)
          V::prefetch(panel + W::value_offset(k, 0) + 4096 + line * 64);
      step<R, false>(panel, x, k, lane, sum);
      step<R, true>(panel, x, k + 1, lane, sum);
    }
    if (k < n_in) step<R, false>(panel, x, k, lane, sum);
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < kGroups; ++g) V::store(acc + r * kPanelRows + lane + g * V::kLanes, sum[r][g]);
  }

  // Takes R rows at a time while they last, then the rest with fewer.
  template <int R>
  static void all_rows(const std::byte* panel, const float* x, int64_t stride, int64_t n_in, int n_rows,
                       float* acc) {
    for (; n_rows >= R; n_rows -= R, x += R * stride, acc += R * kPanelRows)
      for (int lane = 0; lane < kPanelRows; lane += kSetRows) rows<R>(panel, x, stride, n_in, lane, acc);
    if constexpr (R > 1)
      if (n_rows > 0) all_rows<(R > 4 ? R - 4 : R - 1)>(panel, x, stride, n_in, n_rows, acc);
  }

  static void run(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                  float* acc) {
    const std::byte* data = w.data.data() + size_t(panel) * W::panel_bytes(w.n_in);
    all_rows<V::kFloatRows>(data, x.f32 + row_begin * x.stride, x.stride, w.n_in, n_rows, acc);
  }
};

}  // namespace kvasir::cpu::matmul
