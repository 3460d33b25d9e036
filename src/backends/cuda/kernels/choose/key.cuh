// A logit and its token as one number: greater means better, ties go to the lower token.
#pragma once
#include "backends/cuda/kernels/common.cuh"

namespace kvasir::cuda {

__device__ __forceinline__ uint64_t make_key(float logit, int token) {
  // A NaN is worse than every number.
  const uint32_t bits = isnan(logit) ? 0xffffffffu : __float_as_uint(logit + 0.0f);  // one zero
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(ordered) << 32 | uint32_t(~token);
}

}  // namespace kvasir::cuda
