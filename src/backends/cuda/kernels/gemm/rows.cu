// Rows of a prompt to f16, as the product that follows reads them.
#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/kernels/elementwise/elementwise.h"
#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/kernels/gemm/groups.h"

namespace kvasir::cuda {
namespace {

// One row a block: tiles of 64 values, [tile][row], as wgmma.cuh has them; of each 16 values, pair k (of
// 0..7) of the tile is pair k / 4 + 2 (k % 4) of the row: what a lane multiplies is four values that follow
// each other in a weight.
__global__ void __launch_bounds__(256)
    tile_rows_kernel(const float* x, int n, int tile_rows, __half* y, float* scale) {
  __shared__ float scratch[32];
  let_next_start();
  wait_for_inputs();
  const int t = int(threadIdx.x), threads = int(blockDim.x), r = int(blockIdx.x);
  const float* row = x + int64_t(r) * n;
  float largest = 0;
  for (int i = 4 * t; i < n; i += 4 * threads) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    largest = fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), largest);
  }
  largest = warp_max(largest);
  if (t % 32 == 0) scratch[t / 32] = largest;
  __syncthreads();
  largest = warp_max(t % 32 < threads / 32 ? scratch[t % 32] : 0.0f);
  const float s = largest > 0 ? largest / 1024.0f : 1.0f, inverse = 1.0f / s;
  if (t == 0) scale[r] = s;
  for (int piece = t; piece < n / 8; piece += threads) {
    // Pieces 2 i and 2 i + 1 of 16 values: their even, and their odd pairs.
    const float* from = row + piece / 2 * 16 + piece % 2 * 2;
    uint32_t pair[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 v = *reinterpret_cast<const float2*>(from + 4 * k);
      const __half2 h = __floats2half2_rn(v.x * inverse, v.y * inverse);
      pair[k] = *reinterpret_cast<const uint32_t*>(&h);
    }
    const int64_t at = (int64_t(piece / 8) * tile_rows + r) * 64 + ((piece % 8) ^ (r % 8)) * 8;
    *reinterpret_cast<uint4*>(y + at) = {pair[0], pair[1], pair[2], pair[3]};
  }
}

}  // namespace

void gemm_rows(const Launch& how, const float* x, int n, int n_rows, bool portable, uint16_t* y,
               float* scale) {
  if (!gemm_by_groups(n, portable)) return half_rows(how, x, n, n_rows, y, scale);
  launch(how, dim3(unsigned(n_rows)), dim3(256), 0, tile_rows_kernel, x, n, padded_gemm_rows(n_rows),
         reinterpret_cast<__half*>(y), scale);
}

}  // namespace kvasir::cuda
