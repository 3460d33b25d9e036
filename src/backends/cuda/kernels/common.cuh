// Device helpers every kernel file uses.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

// Until this returns, nothing that an earlier kernel of the stream wrote may be read (and nothing it reads be written).
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel of the stream begin its own preparation.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
// Sum over the block; every thread gets it. `scratch`: 33 floats.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float t = lane < n_warps ? scratch[lane] : 0.0f;
    t = warp_sum(t);
    if (lane == 0) scratch[32] = t;
  }
  __syncthreads();
  return scratch[32];
}

__device__ __forceinline__ float gelu_tanh(float x) {
  const float u = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-2.0f * u));
}

// Weights are read once: keep them out of L1.
__device__ __forceinline__ int4 load_stream(const void* p) {
  int4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ int4 load4(const void* p) { return *static_cast<const int4*>(p); }

// One 32-value group by a warp, a value a lane, to int8.
__device__ __forceinline__ void quantize_group(float v, int lane, int8_t* q, GroupMeta* meta) {
  const float largest = warp_max(fabsf(v));
  const float scale = largest / 127.0f;
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const int code = max(-127, min(127, __float2int_rn(v * inverse)));
  q[lane] = int8_t(code);
  int sum = code;
#pragma unroll
  for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const int high = __shfl_sync(~0u, sum, 16);
  if (lane == 0) *meta = {scale, int(uint32_t(uint16_t(sum)) | (uint32_t(uint16_t(high)) << 16))};
}

template <typename... Params, typename... Args>
void launch(const Launch& how, dim3 grid, dim3 block, size_t shared, void (*kernel)(Params...), Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = how.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = how.overlap ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, Params(args)...);
}

}  // namespace kvasir::cuda
