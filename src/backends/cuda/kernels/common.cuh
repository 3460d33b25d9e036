// Device helpers every kernel file uses.
#pragma once
#include <cuda_fp16.h>

#include <tuple>

#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

// Until this returns, nothing that an earlier kernel of the stream wrote may be read (and nothing it reads be
// written).
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
  return __fdividef(x, 1.0f + __expf(-2.0f * u));
}

// Weights are read once: keep them out of L1.
__device__ __forceinline__ int4 load_stream(const void* p) {
  int4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ int4 load4(const void* p) { return *static_cast<const int4*>(p); }

// E consecutive values a lane (2, 4, 8, 16) to int8 groups: 32 / E lanes share a group. `q` and `meta`: of
// the warp's first value.
template <int E>
__device__ __forceinline__ void quantize_lanes(const float (&v)[E], int lane, int8_t* q, GroupMeta* meta) {
  constexpr int kLanes = 32 / E;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) largest = fmaxf(largest, fabsf(v[i]));
#pragma unroll
  for (int o = kLanes / 2; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  const float inverse = largest > 0 ? __fdividef(127.0f, largest) : 0.0f;
  int sum = 0;
  uint32_t packed[(E + 3) / 4] = {};
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const int code = max(-127, min(127, __float2int_rn(v[i] * inverse)));
    packed[i / 4] |= uint32_t(code & 255) << (8 * (i % 4));
    sum += code;
  }
#pragma unroll
  for (int o = kLanes / 4; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);  // of a half group
  const int other = __shfl_xor_sync(~0u, sum, kLanes / 2);
  int8_t* to = q + lane * E;
  if constexpr (E == 2) *reinterpret_cast<uint16_t*>(to) = uint16_t(packed[0]);
  if constexpr (E == 4) *reinterpret_cast<uint32_t*>(to) = packed[0];
  if constexpr (E == 8) *reinterpret_cast<uint2*>(to) = {packed[0], packed[1]};
  if constexpr (E == 16) *reinterpret_cast<uint4*>(to) = {packed[0], packed[1], packed[2], packed[3]};
  if (lane % kLanes == 0)
    meta[lane / kLanes] = {largest * (1.0f / 127.0f),
                           int(uint32_t(uint16_t(sum)) | (uint32_t(uint16_t(other)) << 16))};
}

// One value a lane.
__device__ __forceinline__ void quantize_group(float v, int lane, int8_t* q, GroupMeta* meta) {
  const float largest = warp_max(fabsf(v));
  const float inverse = largest > 0 ? __fdividef(127.0f, largest) : 0.0f;
  const int code = max(-127, min(127, __float2int_rn(v * inverse)));
  q[lane] = int8_t(code);
  int sum = code;
#pragma unroll
  for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const int high = __shfl_sync(~0u, sum, 16);
  if (lane == 0)
    *meta = {largest * (1.0f / 127.0f), int(uint32_t(uint16_t(sum)) | (uint32_t(uint16_t(high)) << 16))};
}

// Dynamic shared memory of a launch, and of the launch of this kernel that takes most.
struct SharedBytes {
  size_t bytes, most;
  SharedBytes(size_t n) : bytes(n), most(n) {}
  SharedBytes(size_t n, size_t m) : bytes(n), most(m) {}
};

template <typename... Params, typename... Args>
void launch(const Launch& how, dim3 grid, dim3 block, SharedBytes shared, void (*kernel)(Params...),
            Args&&... args) {
  std::tuple<Params...> values{Params(args)...};
  const LaunchShape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared.bytes, shared.most};
  std::apply(
      [&](auto&... value) {
        void* arguments[] = {&value...};
        launch_kernel(how, shape, reinterpret_cast<const void*>(kernel), arguments);
      },
      values);
}

}  // namespace kvasir::cuda
