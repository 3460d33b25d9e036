// quantize_rows over a vector type Q: half(x, inverse, codes) rounds 16 values and returns the sum of their
// codes; absmax(x) is the largest magnitude of 32. The same operations in every ISA, so the same bits.
#pragma once
#include "backends/cpu/kernels/matmul/activation.h"

namespace kvasir::cpu::matmul {

template <class Q>
[[gnu::always_inline]] inline void quantize_block(const float* x, const MutableActivationBlock& out,
                                                  int n_rows, int row) {
  const float amax = Q::absmax(x);
  const bool tiny = amax < kTinyBlock;
  const float inverse = tiny ? 0.0f : 127.0f / amax;
  int8_t* codes = out.codes + row * kBlock;
  const int half[2] = {Q::half(x, inverse, codes), Q::half(x + 16, inverse, codes + 16)};
  out.scale[row] = tiny ? 0.0f : amax / 127.0f;
  out.start[row] = kMagicBits - 128 * (half[0] + half[1]);
  out.sum[row] = float(half[0] + half[1]);
  for (int h = 0; h < 2; ++h) {
    out.start_half[h * n_rows + row] = kMagicBits - 128 * half[h];
    out.sum_half[h * n_rows + row] = float(half[h]);
  }
}

template <class Q>
void quantize_rows(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                   std::byte* packed) {
  constexpr int kGroup = 8;  // rows side by side: few streams to read, whole lines of codes to write
  for (int first = begin; first < end; first += kGroup) {
    const int last = end - first < kGroup ? end : first + kGroup;
    for (int64_t b = 0; b < n_in / kBlock; ++b) {
      const MutableActivationBlock out(packed + size_t(b) * activation_stride(n_rows), n_rows);
      for (int row = first; row < last; ++row)
        quantize_block<Q>(x + row * stride + b * kBlock, out, n_rows, row);
    }
  }
}

// Defines quantize_rows_<isa>.
#define KVASIR_QUANTIZE_ROWS(isa, Q)                                                                     \
  void quantize_rows_##isa(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end, \
                           std::byte* packed) {                                                          \
    quantize_rows<Q>(x, stride, n_in, n_rows, begin, end, packed);                                       \
  }

}  // namespace kvasir::cpu::matmul
