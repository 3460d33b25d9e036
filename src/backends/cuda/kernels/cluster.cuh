// What blocks of a cluster do together (sm_90 and later).
#pragma once
#include "backends/cuda/kernels/mma.cuh"

// A kernel of clusters of n blocks; never launched where there are none.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define KVASIR_CLUSTER(n)
#else
#define KVASIR_CLUSTER(n) __cluster_dims__(n, 1, 1)
#endif

namespace kvasir::cuda {

// After a barrier of the block: what its threads wrote to shared memory stands there. A release would also
// wait for what they wrote to memory, which nobody of the cluster reads.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// `p` in shared memory of the cluster's block `rank`.
__device__ __forceinline__ uint32_t remote_address(const float* p, int rank) {
  uint32_t at = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
#endif
  return at;
}
__device__ __forceinline__ float load_remote(const float* p, int rank) {
  float v = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(remote_address(p, rank)) : "memory");
#endif
  return v;
}
__device__ __forceinline__ void load_remote(const float* p, int rank, float (&v)[1]) {
  v[0] = load_remote(p, rank);
}
__device__ __forceinline__ void load_remote(const float* p, int rank, float (&v)[2]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v[0]), "=f"(v[1])
               : "r"(remote_address(p, rank))
               : "memory");
#endif
}

}  // namespace kvasir::cuda
