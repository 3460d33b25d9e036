#include "engine/state_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"

namespace kvasir::engine {
namespace {

class FileSource final : public StateSource {
 public:
  explicit FileSource(const std::string& path) : path_(path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd_ < 0) fail_errno("cannot be opened");
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail_errno("cannot be read");
    if (!S_ISREG(status.st_mode)) {
      ::close(fd_);
      fail(ErrorCode::kBadFile, "{}: not a regular file", path_);
    }
    size_ = uint64_t(status.st_size);
  }
  ~FileSource() override {
    if (fd_ >= 0) ::close(fd_);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(fd_, out.data(), out.size(), off_t(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_errno("cannot be read");
      if (n == 0) fail(ErrorCode::kBadFile, "{}: became shorter while it was read (byte {})", path_, offset);
      offset += uint64_t(n);
      out = out.subspan(size_t(n));
    }
  }

 private:
  [[noreturn]] void fail_errno(const char* what) {
    const int reason = errno;
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    fail(ErrorCode::kBadFile, "{}: {}: {}", path_, what, std::strerror(reason));
  }

  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

class MemorySource final : public StateSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) override {
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string name_ = "the saved state in memory";
  std::span<const std::byte> bytes_;
};

}  // namespace

std::unique_ptr<StateSource> open_state_file(const std::string& path) {
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<StateSource> state_in_memory(std::span<const std::byte> bytes) {
  return std::make_unique<MemorySource>(bytes);
}

void take_state_types(const Model& model, const std::string& path, SessionOptions& options) {
  StateInfo mine;
  mine.model_hash = model.content_hash();
  mine.model_name = model.description();
  mine.specs = model.graph().kv;
  const std::vector<graph::KvSpec> specs = state_caches(*open_state_file(path), mine);
  const auto of_class = [&](bool sliding) {
    return std::ranges::find_if(specs,
                                [&](const graph::KvSpec& spec) { return (spec.window > 0) == sliding; });
  };
  const auto global = of_class(false), sliding = of_class(true);
  const auto main = global != specs.end() ? global : sliding;
  if (main == specs.end()) return;
  options.kv.k = main->k_type, options.kv.v = main->v_type;
  options.kv.k_sliding = options.kv.v_sliding = {};
  if (sliding != specs.end() && (sliding->k_type != main->k_type || sliding->v_type != main->v_type)) {
    options.kv.k_sliding = sliding->k_type;
    options.kv.v_sliding = sliding->v_type;
  }
  if (global == specs.end()) return;
  options.kv_exact_first = global->exact_first * graph::kPageTokens;
  options.kv_exact_last = global->exact_last * graph::kPageTokens;
}

void save_state_file(const Session& session, int seq, const std::string& path) {
  AtomicFile file(path);
  session.save_state(seq, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void load_state_file(Session& session, int seq, const std::string& path) {
  session.load_state(seq, *open_state_file(path));
}

}  // namespace kvasir::engine
