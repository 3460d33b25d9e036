// The int8 form of activations, laid out for n_rows rows R. Block b (32 values of each row) starts at b *
// stride(R):
//   int8  codes[R][32]
//   f32   scale[R]         absmax / 127
//   i32   start[R]         bits of kMagic - 128 * sum of the 32 codes: where the sum of u * a starts when u
//   has offset 128 f32   sum[R]           sum of the 32 codes, for types with a minimum i32 start_half[2][R]
//   the same two of each half of 16, for types with 16-wide scales f32   sum_half[2][R]
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/cpu_features.h"

namespace kvasir::cpu::matmul {

inline constexpr int kBlock = 32;  // values an activation block
// Integer sums are kept as bits of a float near kMagic = 1.5 * 2^23 (int8_tile.h).
inline constexpr float kMagic = 12582912.0f;
inline constexpr int32_t kMagicBits = 0x4b400000;

// Internal linkage throughout: these headers are compiled once for each ISA.
// An odd number of cache lines, so that the same row of successive blocks does not fall into one cache set.
static constexpr size_t activation_stride(int n_rows) { return ((size_t(n_rows) * 60 + 63) / 64 | 1) * 64; }

template <typename Byte>
struct BasicActivationBlock {
  template <typename T>
  using Ptr = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
  Ptr<int8_t> codes;
  Ptr<float> scale;
  Ptr<int32_t> start;
  Ptr<float> sum;
  Ptr<int32_t> start_half;
  Ptr<float> sum_half;

  [[gnu::always_inline]] BasicActivationBlock(Byte* block, int n_rows) {
    codes = reinterpret_cast<Ptr<int8_t>>(block);
    scale = reinterpret_cast<Ptr<float>>(block + size_t(n_rows) * kBlock);
    start = reinterpret_cast<Ptr<int32_t>>(scale + n_rows);
    sum = scale + 2 * size_t(n_rows);
    start_half = start + 2 * size_t(n_rows);
    sum_half = scale + 5 * size_t(n_rows);
  }
};
using ActivationBlock = BasicActivationBlock<const std::byte>;
using MutableActivationBlock = BasicActivationBlock<std::byte>;

// quantize_rows of one ISA. A block whose absmax is under this becomes zeros: 127 / absmax must stay finite.
inline constexpr float kTinyBlock = 1e-35f;
using QuantizeFn = void (*)(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                            std::byte* packed);
void quantize_rows_generic(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                           std::byte* packed);
void quantize_rows_avx2(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                        std::byte* packed);
void quantize_rows_avx512(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                          std::byte* packed);
void quantize_rows_neon(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                        std::byte* packed);

}  // namespace kvasir::cpu::matmul
