#include <immintrin.h>

#include "backends/cpu/roofline_kernels.h"

namespace kvasir::cpu {
namespace {

uint64_t read_bytes(const std::byte* data, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t at = 0; at < bytes; at += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4096), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + at + 4160), _MM_HINT_T0);
    for (int i = 0; i < 4; ++i)
      sum[i] =
          _mm256_xor_si256(sum[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), all);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

#define KVASIR_KEEP(v) asm volatile("" : "+x"(v))

// u8 x s8 pairs, widened and summed in int32: three instructions for 32 multiply-adds.
double int8_rounds(int64_t n) {
  __m256i sum[8] = {};
  __m256i u = _mm256_setzero_si256(), a = _mm256_setzero_si256();
  const __m256i ones = _mm256_set1_epi16(1);
  KVASIR_KEEP(a);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      KVASIR_KEEP(u);
      sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(_mm256_maddubs_epi16(u, a), ones));
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 8 * 64;
}

double f32_rounds(int64_t n) {
  __m256 sum[12] = {};
  const __m256 x = _mm256_setzero_ps(), y = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < 12; ++c) {
      sum[c] = _mm256_fmadd_ps(x, y, sum[c]);
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 12 * 16;
}

}  // namespace

RooflineKernels roofline_avx2() { return {read_bytes, int8_rounds, f32_rounds}; }

}  // namespace kvasir::cpu
