#include "backends/cuda/runtime/device.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"

namespace kvasir::cuda {

namespace {

// After these every call of the process fails until the device is reset.
bool lost(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorDevicesUnavailable:
    case cudaErrorExternalDevice: return true;
    default: return false;
  }
}

std::atomic<uint64_t> n_allocations = 0;

}  // namespace

uint64_t Memory::allocations() { return n_allocations; }

bool revive_device() {
  cudaError_t status = cudaDeviceSynchronize();
  // The driver may need some time to take the old context apart: it calls the device unavailable until then.
  for (int attempt = 0; attempt < 20 && lost(status); ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cudaDeviceReset();
    (void)cudaGetLastError();
    status = cudaFree(nullptr);  // opens the device anew
  }
  (void)cudaGetLastError();
  return !lost(status);
}

void check(cudaError_t status, std::string_view doing) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // it is said here, and not again by what comes next
  if (status == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(ErrorCode::kNoMemory, "CUDA, {}: the device has no memory left ({:.1f} of {:.1f} GB free)", doing,
         double(free) / 1e9, double(total) / 1e9);
  }
  if (lost(status))
    fail(ErrorCode::kFailed,
         "CUDA, {}: the device was lost: {} ({}); what it held is gone: release the model and load it again", doing,
         cudaGetErrorString(status), cudaGetErrorName(status));
  fail(ErrorCode::kFailed, "CUDA, {}: {} ({})", doing, cudaGetErrorString(status), cudaGetErrorName(status));
}

Memory::Memory(size_t bytes, Place place, std::string_view what) : size_(bytes), place_(place) {
  if (bytes == 0) return;
  ++n_allocations;
  check(place == Place::kDevice ? cudaMalloc(&data_, bytes) : cudaMallocHost(&data_, bytes), what);
}

void Memory::clear(std::string_view doing) const {
  check(cudaMemset(data_, 0, size_), doing);
  check(cudaStreamSynchronize(cudaStreamLegacy), doing);
}

void Memory::fill(const void* from, size_t bytes, std::string_view doing) const {
  check(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice), doing);
  check(cudaStreamSynchronize(cudaStreamLegacy), doing);
}

Memory::~Memory() {
  if (!data_) return;
  if (place_ == Place::kDevice)
    cudaFree(data_);
  else
    cudaFreeHost(data_);
}

}  // namespace kvasir::cuda
