#include <arm_neon.h>

#include "backends/cpu/roofline_kernels.h"

namespace kvasir::cpu {
namespace {

uint64_t read_bytes(const std::byte* data, size_t bytes) {
  uint8x16_t sum[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  const auto* p = reinterpret_cast<const uint8_t*>(data);
  for (size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(p + at + 4096);
    for (int i = 0; i < 4; ++i) sum[i] = veorq_u8(sum[i], vld1q_u8(p + at + 16 * i));
  }
  const uint64x2_t all = vreinterpretq_u64_u8(veorq_u8(veorq_u8(sum[0], sum[1]), veorq_u8(sum[2], sum[3])));
  return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

#define KVASIR_KEEP(v) asm volatile("" : "+w"(v))

double int8_rounds(int64_t n) {
  int32x4_t sum[16];
  for (auto& s : sum) s = vdupq_n_s32(0);
  const int8x16_t w = vdupq_n_s8(0), a = vdupq_n_s8(0);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      sum[c] = vdotq_s32(sum[c], w, a);
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 16 * 32;
}

double f32_rounds(int64_t n) {
  float32x4_t sum[16];
  for (auto& s : sum) s = vdupq_n_f32(0);
  const float32x4_t x = vdupq_n_f32(0), y = vdupq_n_f32(0);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      sum[c] = vfmaq_f32(sum[c], x, y);
      KVASIR_KEEP(sum[c]);
    }
  return double(n) * 16 * 8;
}

}  // namespace

RooflineKernels roofline_neon() { return {read_bytes, int8_rounds, f32_rounds}; }

}  // namespace kvasir::cpu
