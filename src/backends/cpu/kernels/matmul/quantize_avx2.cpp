#include <immintrin.h>

#include "backends/cpu/kernels/matmul/quantize_body.h"

namespace kvasir::cpu::matmul {
namespace {

struct Avx2Quantizer {
  static float absmax(const float* x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_andnot_ps(sign, _mm256_loadu_ps(x));
    for (int i = 8; i < kBlock; i += 8) m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    __m128 n = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    n = _mm_max_ps(n, _mm_movehl_ps(n, n));
    n = _mm_max_ss(n, _mm_movehdup_ps(n));
    return _mm_cvtss_f32(n);
  }
  static int half(const float* x, float inverse, int8_t* codes) {
    const __m256 scale = _mm256_set1_ps(inverse);
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
    // packs works within 128-bit lanes; the permute restores the order of values.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    const __m256i sum = _mm256_add_epi32(low, high);
    __m128i n = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1));
    return _mm_cvtsi128_si32(n);
  }
};

}  // namespace

KVASIR_QUANTIZE_ROWS(avx2, Avx2Quantizer)

}  // namespace kvasir::cpu::matmul
