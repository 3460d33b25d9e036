#include <immintrin.h>

#include "backends/cpu/kernels/matmul/activation.h"

namespace kvasir::cpu::matmul {
namespace {

inline __m128i codes_of(__m512 x, __m512 inverse, int& sum) {
  const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
  sum = _mm512_reduce_add_epi32(code);
  return _mm512_cvtepi32_epi8(code);
}

inline void quantize_block(const float* x, const MutableActivationBlock& out, int n_rows, int row) {
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
  const bool tiny = amax < kTinyBlock;
  const __m512 inverse = _mm512_set1_ps(tiny ? 0.0f : 127.0f / amax);
  int half[2];
  auto* codes = reinterpret_cast<__m128i*>(out.codes + row * kBlock);
  _mm_storeu_si128(codes, codes_of(x0, inverse, half[0]));
  _mm_storeu_si128(codes + 1, codes_of(x1, inverse, half[1]));
  out.scale[row] = tiny ? 0.0f : amax / 127.0f;
  out.start[row] = kMagicBits - 128 * (half[0] + half[1]);
  out.sum[row] = float(half[0] + half[1]);
  for (int h = 0; h < 2; ++h) {
    out.start_half[h * n_rows + row] = kMagicBits - 128 * half[h];
    out.sum_half[h * n_rows + row] = float(half[h]);
  }
}

}  // namespace

void quantize_rows_avx512(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                          std::byte* packed) {
  for (int64_t b = 0; b < n_in / kBlock; ++b) {
    const MutableActivationBlock out(packed + size_t(b) * activation_stride(n_rows), n_rows);
    for (int row = begin; row < end; ++row) quantize_block(x + row * stride + b * kBlock, out, n_rows, row);
  }
}

}  // namespace kvasir::cpu::matmul
