#include <immintrin.h>

#include "backends/cpu/kernels/matmul/quantize_body.h"

namespace kvasir::cpu::matmul {
namespace {

struct Avx512Quantizer {
  static float absmax(const float* x) {
    const __m512 low = _mm512_abs_ps(_mm512_loadu_ps(x)), high = _mm512_abs_ps(_mm512_loadu_ps(x + 16));
    return _mm512_reduce_max_ps(_mm512_max_ps(low, high));
  }
  static int half(const float* x, float inverse, int8_t* codes) {
    const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(code));
    return _mm512_reduce_add_epi32(code);
  }
};

constexpr int kGroup = 16;  // rows quantised together: their scales and sums fill whole vectors

// Lane r of the result: the largest lane of m[r].
__m512 row_maxima(const __m512* m) {
  __m512 a[8], b[4];
  for (int i = 0; i < 8; ++i)  // pairs of rows interleave by lane
    a[i] = _mm512_max_ps(_mm512_unpacklo_ps(m[2 * i], m[2 * i + 1]), _mm512_unpackhi_ps(m[2 * i], m[2 * i + 1]));
  for (int i = 0; i < 4; ++i)  // four rows: each 128-bit lane holds one candidate of each row
    b[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a[2 * i]), _mm512_castps_pd(a[2 * i + 1]))),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a[2 * i]), _mm512_castps_pd(a[2 * i + 1]))));
  const auto halves = [](__m512 x, __m512 y) {  // over 128-bit lanes 0..3 of x, then of y
    return _mm512_max_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  };
  return halves(halves(b[0], b[1]), halves(b[2], b[3]));
}

// Codes of 16 rows of one block; scales and sums as whole vectors.
void quantize_group(const float* x, int64_t stride, const MutableActivationBlock& out, int n_rows, int row) {
  __m512 m[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    const float* from = x + i * stride;
    m[i] = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(from)), _mm512_abs_ps(_mm512_loadu_ps(from + 16)));
  }
  const __m512 amax = row_maxima(m);
  const __mmask16 usual = _mm512_cmp_ps_mask(amax, _mm512_set1_ps(kTinyBlock), _CMP_NLT_UQ);
  alignas(64) float inverse[kGroup];
  _mm512_store_ps(inverse, _mm512_maskz_div_ps(usual, _mm512_set1_ps(127.0f), amax));
  __m256i sums[kGroup];  // four partial sums of each half
  for (int i = 0; i < kGroup; ++i) {
    const __m512 scale = _mm512_set1_ps(inverse[i]);
    const float* from = x + i * stride;
    const __m128i low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from), scale)));
    const __m128i high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + 16), scale)));
    const __m256i codes = _mm256_set_m128i(high, low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.codes + (row + i) * kBlock), codes);
    sums[i] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
  }
  __m512i half[2];
  __m256i four[4];  // rows 4i .. 4i+3: first halves in the low lane, second halves in the high
  for (int i = 0; i < 4; ++i)
    four[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[4 * i], sums[4 * i + 1]),
                                _mm256_hadd_epi32(sums[4 * i + 2], sums[4 * i + 3]));
  half[0] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_permute2x128_si256(four[0], four[1], 0x20)),
                               _mm256_permute2x128_si256(four[2], four[3], 0x20), 1);
  half[1] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_permute2x128_si256(four[0], four[1], 0x31)),
                               _mm256_permute2x128_si256(four[2], four[3], 0x31), 1);
  const auto start = [](__m512i sum) {
    return _mm512_sub_epi32(_mm512_set1_epi32(kMagicBits), _mm512_slli_epi32(sum, 7));
  };
  const __m512i both = _mm512_add_epi32(half[0], half[1]);
  _mm512_storeu_ps(out.scale + row, _mm512_maskz_div_ps(usual, amax, _mm512_set1_ps(127.0f)));
  _mm512_storeu_si512(out.start + row, start(both));
  _mm512_storeu_ps(out.sum + row, _mm512_cvtepi32_ps(both));
  for (int h = 0; h < 2; ++h) {
    _mm512_storeu_si512(out.start_half + h * n_rows + row, start(half[h]));
    _mm512_storeu_ps(out.sum_half + h * n_rows + row, _mm512_cvtepi32_ps(half[h]));
  }
}

}  // namespace

void quantize_rows_avx512(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                          std::byte* packed) {
  const int grouped = begin + (end - begin) / kGroup * kGroup;
  for (int64_t b = 0; b < n_in / kBlock; ++b) {
    const MutableActivationBlock out(packed + size_t(b) * activation_stride(n_rows), n_rows);
    for (int row = begin; row < grouped; row += kGroup)
      quantize_group(x + row * stride + b * kBlock, stride, out, n_rows, row);
  }
  if (grouped < end) quantize_rows<Avx512Quantizer>(x, stride, n_in, n_rows, grouped, end, packed);
}

}  // namespace kvasir::cpu::matmul
