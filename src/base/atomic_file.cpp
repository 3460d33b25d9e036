#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"

namespace kvasir {

namespace fs = std::filesystem;

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    fail(ErrorCode::kUsage, "{}: not a regular file; give the name of a file to write", path);
  // A link stays a link: the file that it names is replaced.
  target_ = path;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    target_ = fs::weakly_canonical(path, error).string();
    if (error) fail(ErrorCode::kUsage, "{}: a link that cannot be followed: {}", path, error.message());
    if (fs::is_symlink(fs::symlink_status(target_, error)))
      fail(ErrorCode::kUsage, "{}: a link to nothing; remove it or give another name", path);
  }
  std::random_device random;
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{:08x}.tmp", target_, random());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || attempt == 100)) fail_errno("cannot be written");
  }
  // Who may read the file that is replaced may read the new one.
  if (fs::exists(status) && ::fchmod(fd_, mode_t(status.permissions()) & 07777) != 0) {
    const int reason = errno;
    ::close(fd_);
    ::unlink(temporary_.c_str());
    errno = reason;
    fail_errno("cannot be given the permissions of what it replaces");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("cannot be written");
    bytes = bytes.subspan(size_t(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_errno("cannot be written");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail_errno("cannot be written");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_errno("cannot be replaced");
  temporary_.clear();
}

void AtomicFile::fail_errno(const char* what) const {
  fail(ErrorCode::kFailed, "{}: {}: {}", path_, what, std::strerror(errno));
}

}  // namespace kvasir
