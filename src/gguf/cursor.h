// Bounds-checked little-endian reading of a mapped file; every fault names file, offset and what was being read.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kvasir::gguf {

class Cursor {
 public:
  Cursor(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  const std::string& path() const { return path_; }
  size_t offset() const { return offset_; }
  size_t size() const { return bytes_.size(); }
  size_t left() const { return bytes_.size() - offset_; }
  std::span<const std::byte> since(size_t start) const { return bytes_.subspan(start, offset_ - start); }

  uint32_t u32(const char* what) { return read<uint32_t>(what); }
  uint64_t u64(const char* what) { return read<uint64_t>(what); }
  // Precondition: n <= left().
  void skip(size_t n) { offset_ += n; }
  std::string_view string(const char* what, uint64_t max_bytes) {
    const size_t at = offset_;
    const uint64_t length = u64(what);
    if (length > left() || length > max_bytes)
      fail(ErrorCode::kBadFile, "{} (offset {} of {}): string length {} is beyond {}", what, at, path_, length,
           length > left() ? "the end of the file" : "the limit for a name");
    const char* text = reinterpret_cast<const char*>(bytes_.data() + offset_);
    offset_ += length;
    return {text, size_t(length)};
  }

 private:
  template <typename T>
  T read(const char* what) {
    if (left() < sizeof(T))
      fail(ErrorCode::kBadFile, "{}: the file ends at offset {} while reading {}; it may be truncated", path_, offset_, what);
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof value);
    offset_ += sizeof value;
    return value;
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
};

}  // namespace kvasir::gguf
