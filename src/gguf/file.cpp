#include "gguf/file.h"

#include <cctype>
#include <filesystem>
#include <unordered_map>

#include "base/error.h"
#include "gguf/parse.h"
#include "gguf/value_type.h"

namespace kvasir::gguf {
namespace {

constexpr int kMaxParts = 99999;

// A name of the form STEM-00002-of-00005.gguf.
struct SplitName {
  std::string stem;
  int number = 0, count = 0;  // number from 1

  std::string part(int i) const { return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, count); }
};

bool parse_split_name(const std::string& path, SplitName& out) {
  constexpr size_t kTail = sizeof("-00001-of-00002.gguf") - 1;
  if (path.size() <= kTail) return false;
  const std::string tail = path.substr(path.size() - kTail);
  for (size_t i = 0; i < kTail; ++i) {
    const bool digit = (i >= 1 && i < 6) || (i >= 10 && i < 15);
    if (digit ? !std::isdigit(static_cast<unsigned char>(tail[i])) : tail[i] != "-00001-of-00002.gguf"[i])
      return false;
  }
  out.stem = path.substr(0, path.size() - kTail);
  out.number = std::stoi(tail.substr(1, 5));
  out.count = std::stoi(tail.substr(10, 5));
  return true;
}

int64_t split_number(const Part& part, std::string_view key, int64_t fallback) {
  const Value* value = part.find(key);
  return value ? value->integer() : fallback;
}

// The parts of the model that `path` is one of, in order.
std::vector<std::unique_ptr<Part>> open_parts(const std::string& path) {
  std::vector<std::unique_ptr<Part>> parts;
  parts.push_back(parse_part(path));
  const int64_t count = split_number(*parts[0], "split.count", 1);
  SplitName name;
  const bool named = parse_split_name(path, name);
  if (count <= 1 && !(named && name.count > 1)) return parts;
  if (count <= 1)
    fail(ErrorCode::kBadFile,
         "{}: named as part {} of {}, but it has no key 'split.count'; rename it if it is whole", path,
         name.number, name.count);
  if (count > kMaxParts)
    fail(ErrorCode::kBadFile, "{}: key 'split.count' is {}; at most {} parts are read", path, count,
         kMaxParts);
  if (!named || name.count != count || name.number < 1 || name.number > name.count)
    fail(ErrorCode::kBadFile,
         "{}: this is part {} of {} of a split model; its name must end in -{:05}-of-{:05}.gguf and the "
         "other parts must lie "
         "beside it",
         path, split_number(*parts[0], "split.no", 0) + 1, count, split_number(*parts[0], "split.no", 0) + 1,
         count);
  const int given = name.number;
  std::vector<std::unique_ptr<Part>> all;
  for (int i = 1; i <= name.count; ++i) {
    const std::string part_path = name.part(i);
    if (i != given && !std::filesystem::exists(part_path))
      fail(ErrorCode::kBadFile, "{}: part {} of {} is missing: {}", path, i, name.count, part_path);
    all.push_back(i == given ? std::move(parts[0]) : parse_part(part_path));
    const int64_t no = split_number(*all.back(), "split.no", -1),
                  of = split_number(*all.back(), "split.count", -1);
    if (no != i - 1 || of != count)
      fail(ErrorCode::kBadFile,
           "{}: keys 'split.no' and 'split.count' say {} and {}; its name says {} and {}", part_path, no, of,
           i - 1, count);
  }
  return all;
}

}  // namespace

struct File::Impl {
  std::string path;
  uint64_t bytes = 0;
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, size_t> names;  // index into tensors
};

File::File() : impl_(std::make_unique<Impl>()) {}
File::~File() = default;

std::shared_ptr<const File> File::open(const std::string& path) {
  std::shared_ptr<File> file(new File);
  Impl& impl = *file->impl_;
  impl.path = path;
  impl.parts = open_parts(path);
  for (size_t i = 0; i < impl.parts.size(); ++i) {
    impl.bytes += impl.parts[i]->file.bytes().size();
    for (TensorInfo tensor : impl.parts[i]->tensors) {
      tensor.part = int(i);
      if (!impl.names.emplace(tensor.name, impl.tensors.size()).second)
        fail(ErrorCode::kBadFile, "{}: tensor '{}' is also in an earlier part", impl.parts[i]->file.path(),
             tensor.name);
      impl.tensors.push_back(tensor);
    }
  }
  const int64_t expected = split_number(*impl.parts[0], "split.tensors.count", int64_t(impl.tensors.size()));
  if (impl.parts.size() > 1 && expected != int64_t(impl.tensors.size()))
    fail(ErrorCode::kBadFile, "{}: key 'split.tensors.count' is {}, but the parts hold {} tensors", path,
         expected, impl.tensors.size());
  return file;
}

const std::string& File::path() const { return impl_->path; }
uint64_t File::file_bytes() const { return impl_->bytes; }
uint32_t File::version() const { return impl_->parts[0]->version; }
std::span<const KeyValue> File::metadata() const { return impl_->parts[0]->metadata; }
std::span<const TensorInfo> File::tensors() const { return impl_->tensors; }

const Value* File::find(std::string_view key) const { return impl_->parts[0]->find(key); }

const TensorInfo* File::find_tensor(std::string_view name) const {
  const auto found = impl_->names.find(name);
  return found == impl_->names.end() ? nullptr : &impl_->tensors[found->second];
}

const Value& File::require(std::string_view key) const {
  const Value* value = find(key);
  if (!value) fail(ErrorCode::kBadFile, "{}: key '{}' is missing", path(), key);
  return *value;
}

namespace {

const Value& single(const File& file, std::string_view key, const Value& value) {
  if (value.is_array())
    fail(ErrorCode::kBadFile, "{}: key '{}' is an array of {}; a single value is needed", file.path(), key,
         value.count());
  return value;
}

}  // namespace

int64_t File::integer(std::string_view key) const { return single(*this, key, require(key)).integer(); }

int64_t File::integer_or(std::string_view key, int64_t fallback) const {
  return find(key) ? integer(key) : fallback;
}

double File::number(std::string_view key) const { return single(*this, key, require(key)).number(); }

double File::number_or(std::string_view key, double fallback) const {
  return find(key) ? number(key) : fallback;
}

std::string_view File::string(std::string_view key) const {
  return single(*this, key, require(key)).string();
}

const TensorInfo& File::require_tensor(std::string_view name) const {
  const TensorInfo* tensor = find_tensor(name);
  if (!tensor) fail(ErrorCode::kBadFile, "{}: tensor '{}' is missing", path(), name);
  return *tensor;
}

void File::drop(const TensorInfo& tensor) const { impl_->parts[size_t(tensor.part)]->file.drop(tensor.data); }

}  // namespace kvasir::gguf
