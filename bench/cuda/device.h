// A device to time kernels on: its ceilings, memory filled with plausible values, and the clock.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "backends/cuda/kernels/args.h"
#include "backends/cuda/runtime/device.h"
#include "cuda/kernels.h"

namespace kvasir::bench {

class Device {
 public:
  explicit Device(const KernelOptions& options);
  ~Device();
  // Prints a row: `calls(launch, i)` enqueues call i of `n` (whose data rotate); median over the repeats.
  void row(const std::string& kernel, const std::string& shape, double bytes, double flops, int n,
           const std::function<void(const cuda::Launch&, int)>& calls);
  bool wanted(const std::string& kernel, const std::string& shape) const;
  void print_head() const;
  // Seconds a call.
  double time(int n, const std::function<void(const cuda::Launch&, int)>& calls);

  bool portable() const { return options_.portable; }

 private:
  void measure_matmul();
  KernelOptions options_;
  cudaStream_t stream_ = nullptr;
  double copy_bytes_ = 0, matmul_flops_ = 0;  // a second
  std::string matmul_name_;
};

// Device memory with `pattern` over and over.
cuda::Memory repeat(const std::vector<uint8_t>& pattern, size_t bytes);
// Normal values in f16, and in f32.
std::vector<uint8_t> half_normals(size_t n, float spread);
std::vector<uint8_t> float_normals(size_t n, float spread);
std::vector<uint8_t> random_bytes(size_t n);

}  // namespace kvasir::bench
