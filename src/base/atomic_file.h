// A file that appears whole or not at all: bytes go to a temporary file beside it, which takes its name at
// the end.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace kvasir {

class AtomicFile {
 public:
  // Throws Error{kUsage} when `path` exists and is not a regular file, Error{kFailed} when its folder cannot
  // be written.
  explicit AtomicFile(const std::string& path);
  // Without commit() the temporary file goes away and `path` is as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throw Error{kFailed} naming the path and the reason (a full disk).
  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail_errno(const char* what) const;

  std::string path_, target_, temporary_;
  int fd_ = -1;
};

}  // namespace kvasir
