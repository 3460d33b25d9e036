// The vendor's runtime behind RAII and Error.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace kvasir::cuda {

// Throws Error{kFailed}, or kNoMemory, with what was being done and the vendor's text.
void check(cudaError_t status, std::string_view doing);

// Makes a device usable again that an error has taken from this process. Everything on it is gone: nobody may
// hold memory, streams or graphs there. False when the driver does not give it back to this process.
bool revive_device();

// Device memory (contents undefined) or page-locked host memory.
enum class Place { kDevice, kHost };
class Memory {
 public:
  Memory() = default;
  Memory(size_t bytes, Place place, std::string_view what);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(place_, other.place_);
    return *this;
  }
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // Zeros, and a copy of `bytes` from the host. Both return when they stand there, for every stream: the
  // vendor's own calls return before that, and streams of ours do not wait for the one they use.
  void clear(std::string_view doing) const;
  void fill(const void* from, size_t bytes, std::string_view doing) const;
  static uint64_t allocations();  // of this process so far
  size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  Place place_ = Place::kDevice;
};

}  // namespace kvasir::cuda
