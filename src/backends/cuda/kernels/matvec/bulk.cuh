// Bulk copies into shared memory and the barriers that count their bytes: of sm_90. A build for less has
// traps in their place, and no kernel with them is launched there (has_sm90_kernels).
#pragma once
#include <cstdint>

#include "backends/cuda/kernels/mma.cuh"

namespace kvasir::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}
// `bytes`: a multiple of 16, as are both addresses.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
// What is read once goes first when L2 needs room: what is written and read again stays there.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
#else
__device__ inline uint64_t read_once() { return 0; }
__device__ inline void copy_bulk(void*, const void*, int, uint64_t*, uint64_t) { __trap(); }
__device__ inline void init_barrier(uint64_t*, int) { __trap(); }
__device__ inline void publish_barriers() { __trap(); }
__device__ inline void arrive(uint64_t*) { __trap(); }
__device__ inline void arrive_expecting(uint64_t*, int) { __trap(); }
__device__ inline void wait_barrier(uint64_t*, int) { __trap(); }
__device__ inline void copy_bulk(void*, const void*, int, uint64_t*) { __trap(); }
#endif

}  // namespace kvasir::cuda
