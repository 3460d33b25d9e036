#include <immintrin.h>

#include "backends/cpu/roofline_kernels.h"

namespace kvasir::cpu {
namespace {

uint64_t read_bytes(const std::byte* data, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t at = 0; at < bytes; at += 256) {
    for (int i = 0; i < 4; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(data + at + 4096 + 64 * i), _MM_HINT_T0);
      sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(data + at + 64 * i));
    }
  }
  const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3]));
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, all);
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}

// Enough independent chains to cover the latency; `keep` stops the compiler from folding the loop.
#define KVASIR_KEEP(v) asm volatile("" : "+v"(v))

double int8_rounds(int64_t n) {
  __m512i sum[20] = {};
  __m512i u = _mm512_setzero_si512(), a = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 20
    for (int c = 0; c < 20; ++c) {
      sum[c] = _mm512_dpbusd_epi32(sum[c], u, a);
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 20 * 128;
}

double f32_rounds(int64_t n) {
  __m512 sum[20] = {};
  const __m512 x = _mm512_setzero_ps(), y = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 20
    for (int c = 0; c < 20; ++c) {
      sum[c] = _mm512_fmadd_ps(x, y, sum[c]);
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 20 * 32;
}

}  // namespace

RooflineKernels roofline_avx512() { return {read_bytes, int8_rounds, f32_rounds}; }

}  // namespace kvasir::cpu
