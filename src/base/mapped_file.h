// Read-only memory-mapped file.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace kvasir {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error{kBadFile} naming the path when it is missing, a directory, unreadable or empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that the whole pages inside `part` need not stay resident; they are re-read on demand.
  void drop(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvasir
