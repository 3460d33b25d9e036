#include "cuda/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/registry/registry.h"
#include "base/half.h"

namespace kvasir::bench {

using cuda::check;
using cuda::Launch;
using cuda::Memory;
using cuda::Place;

std::vector<uint8_t> random_bytes(size_t n) {
  std::mt19937_64 random(7);
  std::vector<uint8_t> out((n + 7) / 8 * 8);
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t v = random();
    std::memcpy(&out[i], &v, 8);
  }
  out.resize(n);
  return out;
}

std::vector<uint8_t> half_normals(size_t n, float spread) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, spread);
  std::vector<uint8_t> out(2 * n);
  for (size_t i = 0; i < n; ++i) {
    const uint16_t h = f32_to_f16(normal(random));
    std::memcpy(&out[2 * i], &h, 2);
  }
  return out;
}

std::vector<uint8_t> float_normals(size_t n, float spread) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, spread);
  std::vector<uint8_t> out(4 * n);
  for (size_t i = 0; i < n; ++i) {
    const float v = normal(random);
    std::memcpy(&out[4 * i], &v, 4);
  }
  return out;
}

Memory repeat(const std::vector<uint8_t>& pattern, size_t bytes) {
  Memory memory(bytes, Place::kDevice, "allocating benchmark data");
  size_t filled = std::min(bytes, pattern.size());
  check(cudaMemcpy(memory.as(), pattern.data(), filled, cudaMemcpyHostToDevice), "filling");
  while (filled < bytes) {
    const size_t n = std::min(filled, bytes - filled);
    check(cudaMemcpy(memory.as<uint8_t>() + filled, memory.as(), n, cudaMemcpyDeviceToDevice), "filling");
    filled += n;
  }
  return memory;
}

Device::Device(const KernelOptions& options) : options_(options) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  copy_bytes_ = backends::copy_rate("cuda");
  measure_matmul();
}
Device::~Device() { cudaStreamDestroy(stream_); }

double Device::time(int n, const std::function<void(const Launch&, int)>& calls) {
  check(cudaDeviceSynchronize(), "filling");  // what was filled on another stream stands there
  for (int i = 0; i < std::min(n, 2); ++i) calls({stream_, false}, i);  // loads the kernels
  check(cudaGetLastError(), "launching");
  check(cudaStreamSynchronize(stream_), "running");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < n; ++i) calls({stream_, i > 0}, i);
  check(cudaStreamEndCapture(stream_, &graph), "capturing");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiating");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "making an event");
  check(cudaEventCreate(&end), "making an event");
  std::vector<double> seconds;
  for (int r = 0; r <= options_.repeats; ++r) {
    check(cudaEventRecord(begin, stream_), "timing");
    check(cudaGraphLaunch(exec, stream_), "timing");
    check(cudaEventRecord(end, stream_), "timing");
    check(cudaStreamSynchronize(stream_), "timing");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "timing");
    if (r > 0) seconds.push_back(double(ms) / 1e3 / n);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::nth_element(seconds.begin(), seconds.begin() + long(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

// cuBLAS when it can be opened, else this backend's own gemm (f16).
void Device::measure_matmul() {
  constexpr int n = 8192;
  const size_t bytes = size_t(n) * n * 2;
  // Upper halves of f32 normals are bf16.
  std::vector<uint8_t> pattern = float_normals(1 << 20, 1);
  for (size_t i = 0; i < pattern.size() / 4; ++i) std::memmove(&pattern[2 * i], &pattern[4 * i + 2], 2);
  pattern.resize(pattern.size() / 2);
  const Memory a = repeat(pattern, bytes), b = repeat(pattern, bytes);
  const Memory c(bytes * 2, Place::kDevice, "allocating benchmark data");
  const double flops = 2.0 * n * n * n;
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, cudaStream_t);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
                       int, const void*, void*, int, int, int, int);
  const auto create = library ? reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2")) : nullptr;
  const auto set_stream =
      library ? reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2")) : nullptr;
  const auto gemm = library ? reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx")) : nullptr;
  void* handle = nullptr;
  if (create && set_stream && gemm && create(&handle) == 0 && set_stream(handle, stream_) == 0) {
    constexpr int kBf16 = 14, kCompute32 = 68, kTransposed = 1, kPlain = 0, kDefault = -1;
    const float one = 1, zero = 0;
    const auto call = [&](const Launch&, int) {
      gemm(handle, kTransposed, kPlain, n, n, n, &one, a.as(), kBf16, n, b.as(), kBf16, n, &zero, c.as(),
           kBf16, n, kCompute32, kDefault);
    };
    matmul_flops_ = flops / time(8, call);
    matmul_name_ = "cuBLAS";
    return;
  }
  const Memory scale = repeat(std::vector<uint8_t>(4 * n, 0), 4 * n),
               shares = repeat(std::vector<uint8_t>(4096, 0), cuda::gemm_share_bytes());
  cuda::GemmArgs args;
  args.x = a.as<uint16_t>(), args.x_scale = scale.as<float>(), args.parts[0].out = c.as<float>();
  args.parts[0].w = {cuda::WeightForm::kF16, n, n, b.as<uint8_t>()};
  args.shares = shares.as<uint8_t>();
  args.n_rows = args.n_in = args.parts[0].n_out = args.parts[0].out_stride = n;
  matmul_flops_ = flops / time(4, [&](const Launch& how, int) { cuda::gemm([&] { return how; }, args); });
  matmul_name_ = "own gemm, f16: cuBLAS could not be opened";
}

void Device::print_head() const {
  cudaDeviceProp properties{};
  int device = 0, driver = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaGetDeviceProperties(&properties, device), "asking for the device");
  check(cudaDriverGetVersion(&driver), "asking for the driver");
  std::printf(
      "%s, driver for CUDA %d.%d; copy %.0f GB/s (read and written); bf16 matmul 8192^3 %.0f TFLOP/s (%s)\n",
      properties.name, driver / 1000, driver % 1000 / 10, copy_bytes_ / 1e9, matmul_flops_ / 1e12,
      matmul_name_.c_str());
  std::printf("median of %d replays of one graph\n\n", options_.repeats);
  std::printf("| kernel | shape | us | GB/s | of copy | TFLOP/s | of matmul |\n");
  std::printf("| --- | --- | ---: | ---: | ---: | ---: | ---: |\n");
}

bool Device::wanted(const std::string& kernel, const std::string& shape) const {
  return (kernel + " " + shape).find(options_.filter) != std::string::npos;
}

void Device::row(const std::string& kernel, const std::string& shape, double bytes, double flops, int n,
                 const std::function<void(const Launch&, int)>& calls) {
  const double s = time(n, calls);
  std::printf("| %s | %s | %.2f | %.0f | %.0f %% | %.1f | %.0f %% |\n", kernel.c_str(), shape.c_str(),
              s * 1e6, bytes / s / 1e9, 100 * bytes / s / copy_bytes_, flops / s / 1e12,
              100 * flops / s / matmul_flops_);
  std::fflush(stdout);
}

}  // namespace kvasir::bench
