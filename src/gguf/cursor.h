// A bounds-checked reader over a file's bytes. Every read that would pass the end throws Error{kBadFile} with
// the offset.
#pragma once
#include <cstddef>
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

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }
  std::span<const std::byte> rest() const { return bytes_.subspan(offset_); }

  // `what` names the field for the message: "the length of key 3".
  template <typename T>
  T read(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> take(uint64_t n, std::string_view what) {
    if (n > remaining())
      fail(ErrorCode::kBadFile,
           "{}: at byte {}: {} needs {} bytes but only {} are left; the file is cut short or damaged", path_,
           offset_, what, n, remaining());
    const auto part = bytes_.subspan(offset_, n);
    offset_ += n;
    return part;
  }

  // u64 length, then that many bytes.
  std::string_view string(std::string_view what) {
    const auto length = read<uint64_t>(what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  const std::string& path_;
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
};

}  // namespace kvasir::gguf
