#include "gguf/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/value_type.h"

namespace kvasir::gguf {
namespace {

constexpr size_t kBuffer = 1 << 20;

struct Declared {
  std::string name;
  DType type;
  Shape shape;
  uint64_t bytes = 0, offset = 0;
};

template <typename T>
void append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  append(out, uint64_t(text.size()));
  out.append(text);
}

}  // namespace

struct Writer::Impl {
  std::string path, partial;  // final name, and the one written to
  uint64_t alignment;
  int fd = -1;
  std::string pairs;  // the metadata, encoded
  uint64_t n_pairs = 0;
  std::vector<Declared> tensors;
  std::unordered_set<std::string> keys, names;
  uint64_t data_bytes = 0;  // of all tensors, padded
  std::string buffer;
  bool writing = false;  // the header is out
  size_t current = 0;    // tensor being filled
  uint64_t filled = 0;   // its bytes so far

  [[noreturn]] void misuse(const std::string& what) {
    discard();
    fail(ErrorCode::kFailed, "{}: {}", path, what);
  }

  [[noreturn]] void system_error(std::string_view doing) {
    const int reason = errno;
    discard();
    fail(ErrorCode::kFailed, "{}: cannot {}: {}", path, doing, std::strerror(reason));
  }

  void discard() {
    if (fd < 0) return;
    ::close(fd);
    ::unlink(partial.c_str());
    fd = -1;
  }

  void write_all(const void* data, size_t n) {
    const char* at = static_cast<const char*>(data);
    while (n > 0) {
      const ssize_t done = ::write(fd, at, n);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) system_error("write");
      at += done;
      n -= size_t(done);
    }
  }

  void flush() {
    write_all(buffer.data(), buffer.size());
    buffer.clear();
  }

  void put(const void* data, size_t n) {
    if (buffer.size() + n > kBuffer) flush();
    if (n >= kBuffer) return write_all(data, n);
    buffer.append(static_cast<const char*>(data), n);
  }

  uint64_t padded(uint64_t n) const { return (n + alignment - 1) / alignment * alignment; }

  // Starts the encoding of a pair.
  std::string& open_pair(std::string_view key, ValueType type) {
    if (writing) misuse("metadata after the header was written");
    if (key.empty() || key.size() > 255)
      misuse(fmt::format("key '{}' is empty or longer than 255 bytes", key));
    if (!keys.insert(std::string(key)).second) misuse(fmt::format("key '{}' is added twice", key));
    append_string(pairs, key);
    append(pairs, uint32_t(type));
    ++n_pairs;
    return pairs;
  }

  template <typename T>
  void add_scalar(std::string_view key, ValueType type, T value) {
    append(open_pair(key, type), value);
  }

  template <typename T>
  void add_array(std::string_view key, ValueType element, std::span<const T> values) {
    std::string& out = open_pair(key, ValueType::array);
    append(out, uint32_t(element));
    append(out, uint64_t(values.size()));
    out.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }

  // Everything before the tensors' bytes, padded.
  std::string header() const {
    std::string out;
    append(out, kMagic);
    append(out, uint32_t(3));
    append(out, uint64_t(tensors.size()));
    append(out, n_pairs);
    out += pairs;
    for (const Declared& tensor : tensors) {
      append_string(out, tensor.name);
      append(out, uint32_t(tensor.shape.n_dims));
      for (int d = 0; d < tensor.shape.n_dims; ++d) append(out, uint64_t(tensor.shape.ne[size_t(d)]));
      append(out, uint32_t(tensor.type));
      append(out, tensor.offset);
    }
    out.resize(padded(out.size()));
    return out;
  }

  // Pads the current tensor when it is full and moves on; tensors are never empty.
  void advance() {
    const Declared& tensor = tensors[current];
    if (filled < tensor.bytes) return;
    static constexpr char kZeros[64] = {};
    for (uint64_t left = padded(tensor.bytes) - tensor.bytes; left > 0;) {
      const uint64_t n = left < sizeof kZeros ? left : sizeof kZeros;
      put(kZeros, n);
      left -= n;
    }
    ++current;
    filled = 0;
  }

  void close_and_rename() {
    if (::close(fd) != 0) {
      fd = -1;
      const int reason = errno;
      ::unlink(partial.c_str());
      fail(ErrorCode::kFailed, "{}: cannot close: {}", path, std::strerror(reason));
    }
    fd = -1;
    if (::rename(partial.c_str(), path.c_str()) != 0) {
      const int reason = errno;
      ::unlink(partial.c_str());
      fail(ErrorCode::kFailed, "{}: cannot rename {} to it: {}", path, partial, std::strerror(reason));
    }
  }
};

Writer::Writer(std::string path, uint32_t alignment) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->partial = impl_->path + ".tmp";
  impl_->alignment = alignment;
  if (!std::has_single_bit(alignment) || alignment < kMinAlignment || alignment > kMaxAlignment)
    impl_->misuse(fmt::format("alignment {} is not a power of two from {} to {}", alignment, kMinAlignment,
                              kMaxAlignment));
  impl_->fd = ::open(impl_->partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->fd < 0) impl_->system_error("create " + impl_->partial);
  if (alignment != kDefaultAlignment) add_u32("general.alignment", alignment);
}

Writer::~Writer() { impl_->discard(); }

void Writer::add_u32(std::string_view key, uint32_t value) { impl_->add_scalar(key, ValueType::u32, value); }
void Writer::add_i32(std::string_view key, int32_t value) { impl_->add_scalar(key, ValueType::i32, value); }
void Writer::add_u64(std::string_view key, uint64_t value) { impl_->add_scalar(key, ValueType::u64, value); }
void Writer::add_f32(std::string_view key, float value) { impl_->add_scalar(key, ValueType::f32, value); }
void Writer::add_bool(std::string_view key, bool value) {
  impl_->add_scalar(key, ValueType::boolean, uint8_t(value));
}
void Writer::add_string(std::string_view key, std::string_view value) {
  append_string(impl_->open_pair(key, ValueType::string), value);
}
void Writer::add_i32_array(std::string_view key, std::span<const int32_t> values) {
  impl_->add_array(key, ValueType::i32, values);
}
void Writer::add_u32_array(std::string_view key, std::span<const uint32_t> values) {
  impl_->add_array(key, ValueType::u32, values);
}
void Writer::add_f32_array(std::string_view key, std::span<const float> values) {
  impl_->add_array(key, ValueType::f32, values);
}
void Writer::add_bool_array(std::string_view key, std::span<const uint8_t> values) {
  for (uint8_t value : values)
    if (value > 1) impl_->misuse(fmt::format("key '{}': {} is not a boolean", key, value));
  impl_->add_array(key, ValueType::boolean, values);
}
void Writer::add_string_array(std::string_view key, std::span<const std::string_view> values) {
  std::string& out = impl_->open_pair(key, ValueType::array);
  append(out, uint32_t(ValueType::string));
  append(out, uint64_t(values.size()));
  for (std::string_view value : values) append_string(out, value);
}

void Writer::add_copy(const KeyValue& pair) {
  // The writer's own alignment decides, not that of the file copied from.
  if (pair.key == "general.alignment") return;
  std::string& out = impl_->open_pair(pair.key, pair.value.type());
  if (pair.value.is_array()) {
    append(out, uint32_t(pair.value.element_type()));
    append(out, pair.value.count());
  }
  const auto raw = pair.value.raw();
  out.append(reinterpret_cast<const char*>(raw.data()), raw.size());
}

void Writer::add_tensor(std::string_view name, DType type, const Shape& shape) {
  Impl& impl = *impl_;
  if (impl.writing) impl.misuse(fmt::format("tensor '{}' is declared after the header was written", name));
  const formats::Format* format = formats::find(type);
  if (!format) impl.misuse(fmt::format("tensor '{}': type id {} is not in this build", name, uint32_t(type)));
  if (!format->has_role(formats::kWeights))
    impl.misuse(fmt::format("tensor '{}': type {} cannot hold weights", name, format->name));
  if (name.empty() || name.size() > 63)
    impl.misuse(fmt::format("tensor name '{}' is empty or longer than 63 bytes", name));
  if (shape.n_dims < 1 || shape.n_dims > 4 || shape.count() <= 0)
    impl.misuse(fmt::format("tensor '{}' has the shape {}", name, shape.text()));
  if (shape.ne[0] % format->block != 0)
    impl.misuse(fmt::format("tensor '{}' {} has rows of {} values; {} needs a multiple of {}", name,
                            shape.text(), shape.ne[0], format->name, format->block));
  if (!impl.names.insert(std::string(name)).second)
    impl.misuse(fmt::format("tensor '{}' is declared twice", name));
  Declared tensor{std::string(name), type, shape, format->row_bytes(shape.count()), impl.data_bytes};
  impl.data_bytes += impl.padded(tensor.bytes);
  impl.tensors.push_back(std::move(tensor));
}

void Writer::begin_data() {
  if (impl_->writing) impl_->misuse("the header is written twice");
  impl_->writing = true;
  const std::string header = impl_->header();
  impl_->put(header.data(), header.size());
}

void Writer::data(std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  if (!impl.writing) impl.misuse("tensor data before the header");
  while (!bytes.empty()) {
    if (impl.current == impl.tensors.size())
      impl.misuse(fmt::format("{} bytes beyond the last tensor", bytes.size()));
    const uint64_t left = impl.tensors[impl.current].bytes - impl.filled;
    const auto part = bytes.first(bytes.size() < left ? bytes.size() : left);
    impl.put(part.data(), part.size());
    impl.filled += part.size();
    bytes = bytes.subspan(part.size());
    impl.advance();
  }
}

void Writer::finish_header_only() {
  Impl& impl = *impl_;
  if (impl.writing) impl.misuse("a header-only file with tensor data");
  begin_data();
  impl.flush();
  const off_t header = ::lseek(impl.fd, 0, SEEK_CUR);
  if (header < 0 || ::ftruncate(impl.fd, header + off_t(impl.data_bytes)) != 0)
    impl.system_error("set the size");
  impl.close_and_rename();
}

void Writer::finish() {
  Impl& impl = *impl_;
  if (!impl.writing) begin_data();
  if (impl.current != impl.tensors.size())
    impl.misuse(fmt::format("tensor '{}' has {} of {} bytes", impl.tensors[impl.current].name, impl.filled,
                            impl.tensors[impl.current].bytes));
  impl.flush();
  impl.close_and_rename();
}

}  // namespace kvasir::gguf
