// The vendor's launch, for kernel files.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/args.h"
#include "backends/cuda/runtime/device.h"
#include "base/error.h"

namespace kvasir::cuda {

void launch_kernel(const Launch& how, const LaunchShape& shape, const void* kernel, void** arguments) {
  // Shared memory beyond 48 KiB has to be asked for; what a kernel declares itself counts, too.
  constexpr size_t kNeedsConsent = 40 * 1024;
  if (const size_t most = std::max(shape.shared, shape.shared_most); most > kNeedsConsent)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(most)),
          "asking for shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid[0], shape.grid[1], shape.grid[2]);
  config.blockDim = dim3(shape.block[0], shape.block[1], shape.block[2]);
  config.dynamicSmemBytes = shape.shared;
  config.stream = how.stream;
  cudaLaunchAttribute attributes[2]{};
  const auto add = [&]() -> cudaLaunchAttribute& { return attributes[config.numAttrs++]; };
  // One split of L1 and shared memory for all: a change between kernels drains the multiprocessor.
  cudaLaunchAttribute& split = add();
  split.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  split.val.sharedMemCarveout = 100;
  if (how.overlap) {
    cudaLaunchAttribute& overlap = add();
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  config.attrs = attributes;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "launching a kernel");
}

void copy_on_device(const Launch& how, void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, how.stream), "copying on the device");
}

bool has_warp_group_products() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "asking for the device");
  return major == 9 && minor == 0;
}

bool kernel_loads(const void* kernel) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  (void)cudaGetLastError();
  return status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction;
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "asking for the device");
  return count;
}

RowsMap map_rows(const void* rows, int n_values) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "asking the driver for tensor maps");
    if (!entry || found != cudaDriverEntryPointSuccess)
      fail(ErrorCode::kNoDevice,
           "CUDA: this driver does not offer tensor maps (cuTensorMapEncodeTiled); install one for CUDA 13 "
           "or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  // As many rows as coordinates reach: whoever copies names rows that are there.
  const cuuint64_t sizes[2] = {cuuint64_t(n_values), cuuint64_t(1) << 31},
                   row_bytes = cuuint64_t(n_values) * 2;
  const cuuint32_t box[2] = {64, 64}, steps[2] = {1, 1};
  CUtensorMap map{};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(rows), sizes, &row_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail(ErrorCode::kFailed, "CUDA: the driver refuses a map of rows of {} values (error {})", n_values,
         int(status));
  static_assert(sizeof(map) == sizeof(RowsMap));
  return std::bit_cast<RowsMap>(map);
}

size_t shared_memory_limit() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "asking for shared memory");
  return size_t(bytes);
}

}  // namespace kvasir::cuda
