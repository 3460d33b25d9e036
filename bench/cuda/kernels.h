// The CUDA rows of bench/kernels.
#pragma once
#include <string>

namespace kvasir::bench {

struct KernelOptions {
  std::string filter;
  int repeats = 9;
  bool portable = false;
};

#ifdef KVASIR_HAVE_CUDA
void run_cuda_kernels(const KernelOptions& options);
#else
inline void run_cuda_kernels(const KernelOptions&) {}  // known_backends() has said why
#endif

}  // namespace kvasir::bench
