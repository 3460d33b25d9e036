#include <arm_neon.h>

#include "backends/cpu/kernels/matmul/quantize_body.h"

namespace kvasir::cpu::matmul {
namespace {

struct NeonQuantizer {
  static float absmax(const float* x) {
    float32x4_t m = vabsq_f32(vld1q_f32(x));
    for (int i = 4; i < kBlock; i += 4) m = vmaxq_f32(m, vabsq_f32(vld1q_f32(x + i)));
    return vmaxvq_f32(m);
  }
  static int half(const float* x, float inverse, int8_t* codes) {
    int32x4_t code[4];
    for (int i = 0; i < 4; ++i) code[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse));
    const int16x8_t low = vcombine_s16(vmovn_s32(code[0]), vmovn_s32(code[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(code[2]), vmovn_s32(code[3]));
    vst1q_s8(codes, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return vaddvq_s32(vaddq_s32(vaddq_s32(code[0], code[1]), vaddq_s32(code[2], code[3])));
  }
};

}  // namespace

KVASIR_QUANTIZE_ROWS(neon, NeonQuantizer)

}  // namespace kvasir::cpu::matmul
