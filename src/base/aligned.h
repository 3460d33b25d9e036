// Zero-initialised, page-aligned memory; large blocks ask for huge pages so that streaming reads keep their TLB.
#pragma once
#include <cstddef>
#include <span>

namespace kvasir {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Throws Error{kNoMemory} when the system refuses.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() { return reinterpret_cast<T*>(data_); }
  template <typename T>
  const T* as() const { return reinterpret_cast<const T*>(data_); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;      // asked for
  size_t reserved_ = 0;  // mapped
};

}  // namespace kvasir
