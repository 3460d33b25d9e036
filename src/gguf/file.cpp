#include "gguf/file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/format.h"
#include "gguf/cursor.h"
#include "gguf/split.h"

namespace kvasir::gguf {

namespace {

constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMaxNameBytes = 65535;

size_t scalar_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean: return 1;
    case ValueType::u16:
    case ValueType::i16: return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32: return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64: return 8;
    case ValueType::string:
    case ValueType::array: return 0;
  }
  return 0;
}

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

bool is_own_type(uint32_t id) { return (id >= 44 && id <= 50) || (id >= 64 && id <= 69); }

}  // namespace

// ---- values ------------------------------------------------------------------------------------------------

int64_t Value::integer(uint64_t i) const {
  if (i >= count_) fail(ErrorCode::kBadFile, "{}: element {} was asked for; it has {}", where_, i, count_);
  const std::byte* at = raw_.data() + (is_array() ? 12 : 0) + i * scalar_bytes(element_);
  switch (element_) {
    case ValueType::u8: return load<uint8_t>(at);
    case ValueType::i8: return load<int8_t>(at);
    case ValueType::boolean: return load<uint8_t>(at);
    case ValueType::u16: return load<uint16_t>(at);
    case ValueType::i16: return load<int16_t>(at);
    case ValueType::u32: return load<uint32_t>(at);
    case ValueType::i32: return load<int32_t>(at);
    case ValueType::i64: return load<int64_t>(at);
    case ValueType::u64: {
      const uint64_t value = load<uint64_t>(at);
      if (value > uint64_t(std::numeric_limits<int64_t>::max()))
        fail(ErrorCode::kBadFile, "{}: value {} is too large", where_, value);
      return int64_t(value);
    }
    default: fail(ErrorCode::kBadFile, "{}: an integer was expected; its type id is {}", where_, uint32_t(element_));
  }
}

double Value::number(uint64_t i) const {
  if (element_ != ValueType::f32 && element_ != ValueType::f64) return double(integer(i));
  if (i >= count_) fail(ErrorCode::kBadFile, "{}: element {} was asked for; it has {}", where_, i, count_);
  const std::byte* at = raw_.data() + (is_array() ? 12 : 0) + i * scalar_bytes(element_);
  return element_ == ValueType::f32 ? double(load<float>(at)) : load<double>(at);
}

bool Value::boolean(uint64_t i) const { return integer(i) != 0; }

std::string_view Value::string(uint64_t i) const {
  if (element_ != ValueType::string)
    fail(ErrorCode::kBadFile, "{}: a string was expected; its type id is {}", where_, uint32_t(element_));
  if (i >= strings_.size()) fail(ErrorCode::kBadFile, "{}: element {} was asked for; it has {}", where_, i, count_);
  return strings_[i];
}

// ---- file --------------------------------------------------------------------------------------------------

struct File::Impl {
  std::string path;
  std::vector<MappedFile> parts;
  uint32_t version = 0;
  std::vector<KeyValue> metadata;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, size_t> keys, names;

  Value read_value(Cursor& in, const std::string& where);
  void read_part(size_t part);
  void read_metadata(Cursor& in, uint64_t n, bool first);
  void read_tensors(Cursor& in, uint64_t n, size_t part);
  void place_tensors(Cursor& in, size_t first, size_t part, uint64_t alignment);
  uint64_t alignment_of(const std::vector<KeyValue>& pairs) const;
  bool written_by_kvasir() const;
};

File::File() : impl_(std::make_unique<Impl>()) {}
File::~File() = default;

Value File::Impl::read_value(Cursor& in, const std::string& where) {
  Value value;
  value.where_ = where;
  const auto read_type = [&](const char* what) {
    const uint32_t id = in.u32(where.c_str());
    if (id > uint32_t(ValueType::f64))
      fail(ErrorCode::kBadFile, "{} (offset {}): unknown {} type id {}; known: 0 to 12", where, in.offset() - 4, what, id);
    return ValueType(id);
  };
  value.type_ = value.element_ = read_type("value");
  const size_t start = in.offset();
  if (value.is_array()) {
    value.element_ = read_type("element");
    if (value.element_ == ValueType::array)
      fail(ErrorCode::kBadFile, "{} (offset {}): nested arrays are not allowed", where, start);
    value.count_ = in.u64(where.c_str());
  }
  if (value.element_ == ValueType::string) {
    // Every string takes at least its length word: a count beyond that is a lie, and is found before memory is taken.
    if (value.count_ > in.left() / 8)
      fail(ErrorCode::kBadFile, "{} (offset {}): {} strings cannot fit in the {} bytes that are left", where, start,
           value.count_, in.left());
    value.strings_.reserve(value.count_);
    for (uint64_t i = 0; i < value.count_; ++i) value.strings_.push_back(in.string(where.c_str(), in.left()));
  } else {
    const size_t bytes = scalar_bytes(value.element_);
    if (value.count_ > in.left() / bytes)
      fail(ErrorCode::kBadFile, "{} (offset {}): {} values of {} bytes cannot fit in the {} bytes that are left", where,
           start, value.count_, bytes, in.left());
    in.skip(value.count_ * bytes);
  }
  value.raw_ = in.since(start);
  return value;
}

void File::Impl::read_metadata(Cursor& in, uint64_t n, bool first) {
  if (n > in.left() / kMinKeyValueBytes)
    fail(ErrorCode::kBadFile, "{}: key count {} (offset 16) cannot fit in a file of {} bytes", in.path(), n, in.size());
  std::unordered_map<std::string_view, size_t> seen;
  for (uint64_t i = 0; i < n; ++i) {
    const size_t at = in.offset();
    const std::string_view key = in.string(fmt::format("{}: name of key {}", in.path(), i).c_str(), kMaxNameBytes);
    if (key.empty()) fail(ErrorCode::kBadFile, "{}: key {} (offset {}) has an empty name", in.path(), i, at);
    if (!seen.emplace(key, i).second)
      fail(ErrorCode::kBadFile, "{}: key '{}' (offset {}) appears twice", in.path(), key, at);
    KeyValue pair{key, read_value(in, fmt::format("{}: key '{}'", in.path(), key))};
    // The first part of a split file carries the metadata; later parts repeat only their place in it.
    if (!first) continue;
    keys.emplace(key, metadata.size());
    metadata.push_back(std::move(pair));
  }
}

bool File::Impl::written_by_kvasir() const {
  const auto by = keys.find("general.quantized_by");
  if (by == keys.end()) return false;
  const Value& value = metadata[by->second].value;
  const auto version_key = keys.find("kvasir.format_version");
  return value.element_type() == ValueType::string && value.string() == "kvasir" && version_key != keys.end() &&
         metadata[version_key->second].value.integer() == 1;
}

void File::Impl::read_tensors(Cursor& in, uint64_t n, size_t part) {
  if (n > in.left() / kMinTensorInfoBytes)
    fail(ErrorCode::kBadFile, "{}: tensor count {} (offset 8) cannot fit in a file of {} bytes", in.path(), n, in.size());
  const size_t first = tensors.size();
  tensors.reserve(first + n);
  for (uint64_t i = 0; i < n; ++i) {
    const size_t at = in.offset();
    TensorInfo tensor;
    tensor.part = int(part);
    tensor.name = in.string(fmt::format("{}: name of tensor {}", in.path(), i).c_str(), kMaxNameBytes);
    const auto bad = [&](const std::string& reason) {
      fail(ErrorCode::kBadFile, "{}: tensor '{}' (offset {}): {}", in.path(), tensor.name, at, reason);
    };
    if (tensor.name.empty()) bad("its name is empty");
    if (!names.emplace(tensor.name, tensors.size()).second) bad("the name appears twice");
    const uint32_t n_dims = in.u32("n_dims");
    if (n_dims < 1 || n_dims > kMaxDims) bad(fmt::format("n_dims is {}; it must be 1 to 4", n_dims));
    tensor.shape.n_dims = int(n_dims);
    uint64_t count = 1;
    for (uint32_t d = 0; d < n_dims; ++d) {
      const uint64_t ne = in.u64("dimension");
      if (ne == 0) bad(fmt::format("dimension {} is zero", d));
      if (ne > uint64_t(std::numeric_limits<int64_t>::max()) / count)
        bad(fmt::format("the product of its dimensions overflows at dimension {} = {}", d, ne));
      count *= ne;
      tensor.shape.ne[d] = int64_t(ne);
    }
    const uint32_t id = in.u32("type");
    tensor.type = DType(id);
    if (is_own_type(id) && !written_by_kvasir())
      bad(fmt::format("type id {} has no fixed meaning outside Kvasir (other programs write other bytes under it); only files with "
                      "general.quantized_by = kvasir and kvasir.format_version = 1 are read with it",
                      id));
    const formats::Format* format = formats::find(tensor.type);
    if (!format) bad(fmt::format("type id {} is unknown; known types: {}", id, formats::names(formats::kWeights)));
    if (tensor.shape.ne[0] % format->block != 0)
      bad(fmt::format("row length {} is not a multiple of {}, the block of {}", tensor.shape.ne[0], format->block, format->name));
    const uint64_t blocks = count / format->block;
    if (blocks > std::numeric_limits<uint64_t>::max() / 2 / format->block_bytes) bad("its size in bytes overflows");
    const uint64_t offset = in.u64("offset");
    // data.data() holds the relative offset until the data section's start is known.
    tensor.data = {reinterpret_cast<const std::byte*>(offset), size_t(blocks * format->block_bytes)};
    tensors.push_back(tensor);
  }
}

void File::Impl::place_tensors(Cursor& in, size_t first, size_t part, uint64_t alignment) {
  const std::span<const std::byte> bytes = parts[part].bytes();
  const uint64_t start = (in.offset() + alignment - 1) / alignment * alignment;
  std::vector<size_t> order;
  for (size_t i = first; i < tensors.size(); ++i) {
    TensorInfo& tensor = tensors[i];
    const uint64_t offset = reinterpret_cast<uint64_t>(tensor.data.data()), size = tensor.data.size();
    const auto bad = [&](const std::string& reason) {
      fail(ErrorCode::kBadFile, "{}: tensor '{}': {}", in.path(), tensor.name, reason);
    };
    if (offset % alignment != 0) bad(fmt::format("data offset {} is not a multiple of the alignment {}", offset, alignment));
    if (start > bytes.size() || offset > bytes.size() - start || size > bytes.size() - start - offset)
      bad(fmt::format("its {} bytes at data offset {} end past the end of the file ({} bytes, data from {}); the file may be "
                      "truncated",
                      size, offset, bytes.size(), start));
    tensor.data = bytes.subspan(start + offset, size);
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors[a].data.data() < tensors[b].data.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo &a = tensors[order[i - 1]], &b = tensors[order[i]];
    if (a.data.data() + a.data.size() > b.data.data())
      fail(ErrorCode::kBadFile, "{}: tensors '{}' and '{}' overlap", in.path(), a.name, b.name);
  }
}

uint64_t File::Impl::alignment_of(const std::vector<KeyValue>& pairs) const {
  for (const KeyValue& pair : pairs) {
    if (pair.key != "general.alignment") continue;
    const int64_t alignment = pair.value.integer();
    if (alignment < 1 || alignment > (int64_t(1) << 30) || !std::has_single_bit(uint64_t(alignment)))
      fail(ErrorCode::kBadFile, "{}: key 'general.alignment' is {}; it must be a power of two", path, alignment);
    return uint64_t(alignment);
  }
  return 32;
}

void File::Impl::read_part(size_t part) {
  const MappedFile& file = parts[part];
  Cursor in(file.path(), file.bytes());
  if (file.bytes().size() >= 8 && std::memcmp(file.bytes().data(), "LITERTLM", 8) == 0)
    fail(ErrorCode::kRefused,
         "{}: this is a LiteRT-LM bundle (.litertlm). required: a GGUF file; supported: GGUF version 2 and 3; missing: the model "
         "in GGUF form (LiteRT-LM runs its own graph; use its own runtime, or convert the original weights to GGUF)",
         file.path());
  if (file.bytes().size() < 24 || std::memcmp(file.bytes().data(), "GGUF", 4) != 0)
    fail(ErrorCode::kBadFile, "{}: not a GGUF file (it starts with other bytes than 'GGUF', or is shorter than a header)",
         file.path());
  in.skip(4);
  const uint32_t found = in.u32("version");
  if ((found & 0xffffu) == 0)
    fail(ErrorCode::kBadFile, "{}: version word {:#x} (offset 4): the file was written big-endian; convert it to little-endian",
         file.path(), found);
  if (found < 2 || found > 3)
    fail(ErrorCode::kBadFile, "{}: GGUF version {} (offset 4) is not supported; supported: 2, 3 (convert it with a current tool)",
         file.path(), found);
  if (part == 0) version = found;
  const uint64_t n_tensors = in.u64("tensor count");
  const uint64_t n_keys = in.u64("key count");
  read_metadata(in, n_keys, part == 0);
  const size_t first = tensors.size();
  read_tensors(in, n_tensors, part);
  place_tensors(in, first, part, alignment_of(metadata));
}

std::shared_ptr<const File> File::open(const std::string& path) {
  std::shared_ptr<File> file(new File());
  Impl& f = *file->impl_;
  f.path = path;
  f.parts.emplace_back(path);
  f.read_part(0);
  const int64_t n_parts = file->integer_or("split.count", 1);
  if (n_parts < 1 || n_parts > 99999)
    fail(ErrorCode::kBadFile, "{}: key 'split.count' is {}; it must be 1 to 99999", path, n_parts);
  if (n_parts == 1) return file;
  if (file->integer_or("split.no", 0) != 0)
    fail(ErrorCode::kBadFile, "{}: this is part {} of {}; open the first part (-00001-of-{:05})", path,
         file->integer_or("split.no", 0) + 1, n_parts, n_parts);
  for (int64_t part = 1; part < n_parts; ++part) {
    f.parts.emplace_back(split_part_path(path, int(part), int(n_parts)));
    f.read_part(size_t(part));
  }
  const int64_t expected = file->integer_or("split.tensors.count", int64_t(f.tensors.size()));
  if (expected != int64_t(f.tensors.size()))
    fail(ErrorCode::kBadFile, "{}: key 'split.tensors.count' is {}; the {} parts hold {}", path, expected, n_parts,
         f.tensors.size());
  return file;
}

const std::string& File::path() const { return impl_->path; }
uint32_t File::version() const { return impl_->version; }
std::span<const KeyValue> File::metadata() const { return impl_->metadata; }
std::span<const TensorInfo> File::tensors() const { return impl_->tensors; }

uint64_t File::file_bytes() const {
  uint64_t total = 0;
  for (const MappedFile& part : impl_->parts) total += part.bytes().size();
  return total;
}

const Value* File::find(std::string_view key) const {
  const auto it = impl_->keys.find(key);
  return it == impl_->keys.end() ? nullptr : &impl_->metadata[it->second].value;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
  const auto it = impl_->names.find(name);
  return it == impl_->names.end() ? nullptr : &impl_->tensors[it->second];
}

const Value& File::require(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  fail(ErrorCode::kBadFile, "{}: key '{}' is missing", impl_->path, key);
}

int64_t File::integer(std::string_view key) const { return require(key).integer(); }
double File::number(std::string_view key) const { return require(key).number(); }
std::string_view File::string(std::string_view key) const { return require(key).string(); }

int64_t File::integer_or(std::string_view key, int64_t fallback) const {
  const Value* value = find(key);
  return value ? value->integer() : fallback;
}

double File::number_or(std::string_view key, double fallback) const {
  const Value* value = find(key);
  return value ? value->number() : fallback;
}

const TensorInfo& File::require_tensor(std::string_view name) const {
  if (const TensorInfo* tensor = find_tensor(name)) return *tensor;
  fail(ErrorCode::kBadFile, "{}: tensor '{}' is missing", impl_->path, name);
}

void File::drop(const TensorInfo& tensor) const { impl_->parts[size_t(tensor.part)].drop(tensor.data); }

}  // namespace kvasir::gguf
