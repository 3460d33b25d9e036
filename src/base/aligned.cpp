#include "base/aligned.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "base/error.h"

namespace kvasir {
namespace {
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kPage = 4096;
}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= 2 * kHugePage;
  const size_t unit = huge ? kHugePage : kPage;
  reserved_ = (bytes + unit - 1) / unit * unit;
  const size_t slack = huge ? kHugePage : 0;  // to cut a 2 MiB aligned range out of the mapping
  void* map = ::mmap(nullptr, reserved_ + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) fail(ErrorCode::kNoMemory, "cannot allocate {} bytes of memory", bytes);
  auto* base = static_cast<std::byte*>(map);
  if (huge) {
    const uintptr_t start = (reinterpret_cast<uintptr_t>(base) + kHugePage - 1) & ~(kHugePage - 1);
    const size_t head = start - reinterpret_cast<uintptr_t>(base);
    if (head) ::munmap(base, head);
    if (slack - head) ::munmap(base + head + reserved_, slack - head);
    base += head;
    ::madvise(base, reserved_, MADV_HUGEPAGE);
  }
  data_ = base;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_) ::munmap(data_, reserved_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(reserved_, other.reserved_);
  return *this;
}

}  // namespace kvasir
