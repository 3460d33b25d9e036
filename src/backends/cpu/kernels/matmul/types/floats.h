// f32, f16, bf16: panels interleaved by k.
//   f32, f16  [k][32 rows]
//   bf16      [k / 2][32 rows][2]: a 32-bit lane holds k (low half) and k + 1; widening is one shift or one
//   mask
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

template <>
struct WeightLayout<DType::f32> {
  static constexpr bool kQuantised = false;
  static constexpr int kValueBytes = 4;
  static size_t panel_bytes(int64_t n_in) { return size_t(n_in) * 128; }
  static size_t value_offset(int64_t k, int row) { return size_t(k) * 128 + size_t(row) * 4; }

  // Weights k of V::kLanes rows from `lane` on; `odd` is k % 2 as a constant.
  template <class V, bool odd>
  [[gnu::always_inline]] static typename V::Floats load(const std::byte* panel, int64_t k, int lane) {
    return V::load_floats(reinterpret_cast<const float*>(panel + k * 128) + lane);
  }
};

template <>
struct WeightLayout<DType::f16> {
  static constexpr bool kQuantised = false;
  static constexpr int kValueBytes = 2;
  static size_t panel_bytes(int64_t n_in) { return size_t(n_in) * 64; }
  static size_t value_offset(int64_t k, int row) { return size_t(k) * 64 + size_t(row) * 2; }

  template <class V, bool odd>
  [[gnu::always_inline]] static typename V::Floats load(const std::byte* panel, int64_t k, int lane) {
    return V::load_f16(panel + k * 64 + lane * 2);
  }
};

template <>
struct WeightLayout<DType::bf16> {
  static constexpr bool kQuantised = false;
  static constexpr int kValueBytes = 2;
  static size_t panel_bytes(int64_t n_in) { return size_t(n_in + 1) / 2 * 128; }
  static size_t value_offset(int64_t k, int row) {
    return size_t(k) / 2 * 128 + size_t(row) * 4 + size_t(k) % 2 * 2;
  }

  template <class V, bool odd>
  [[gnu::always_inline]] static typename V::Floats load(const std::byte* panel, int64_t k, int lane) {
    return V::template load_bf16_pair<odd>(panel + k / 2 * 128 + lane * 4);
  }
};

}  // namespace kvasir::cpu::matmul
