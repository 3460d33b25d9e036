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

}  // namespace

KVASIR_QUANTIZE_ROWS(avx512, Avx512Quantizer)

}  // namespace kvasir::cpu::matmul
