// Parses one GGUF file. Nothing is allocated for a count before the bytes that would back it are known to
// exist.
#include "gguf/parse.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/cursor.h"
#include "gguf/value_type.h"

namespace kvasir::gguf {
namespace {

constexpr uint64_t kMaxKeys = 1 << 17, kMaxTensors = 1 << 20, kMaxStrings = 1 << 24, kMaxName = 255;
constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1, kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// A name safe to print: what is not printable ASCII or UTF-8 beyond it shows as '?'.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 80));
  for (char& c : out)
    if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
  return text.size() > 80 ? out + "..." : out;
}

void check_name(const std::string& path, uint64_t offset, std::string_view kind, std::string_view name) {
  if (name.empty()) fail(ErrorCode::kBadFile, "{}: at byte {}: a {} has an empty name", path, offset, kind);
  if (name.size() > kMaxName)
    fail(ErrorCode::kBadFile, "{}: at byte {}: the name of a {} is {} bytes long; at most {} are allowed",
         path, offset, kind, name.size(), kMaxName);
  for (char c : name)
    if (uint8_t(c) < 0x20 || c == 0x7f)
      fail(ErrorCode::kBadFile, "{}: at byte {}: the name of a {} holds the control character {:#04x} ('{}')",
           path, offset, kind, uint8_t(c), printable(name));
}

void check_count(const std::string& path, std::string_view what, uint64_t count, uint64_t limit,
                 uint64_t least_bytes, uint64_t remaining) {
  if (count > limit)
    fail(ErrorCode::kBadFile, "{}: {} {} is more than any real file has ({})", path, what, count, limit);
  if (count > remaining / least_bytes)
    fail(ErrorCode::kBadFile,
         "{}: {} {} cannot fit the {} bytes that follow; the file is cut short or damaged", path, what, count,
         remaining);
}

bool is_known(ValueType type) { return uint32_t(type) <= uint32_t(ValueType::f64); }

void check_booleans(const std::string& where, std::span<const std::byte> raw) {
  for (std::byte b : raw)
    if (uint8_t(b) > 1)
      fail(ErrorCode::kBadFile, "{} holds the boolean {}; 0 or 1 is needed", where, uint8_t(b));
}

}  // namespace

Value ValueParser::parse(Cursor& cursor, const std::string& path, std::string_view key) {
  Value value;
  value.where_ = fmt::format("{}: key '{}'", path, key);
  const uint64_t at = cursor.offset();
  value.type_ = value.element_ = ValueType(cursor.read<uint32_t>(key));
  if (!is_known(value.type_))
    fail(ErrorCode::kBadFile, "{}: at byte {}: value type {} is unknown (0 to 12 are known)", value.where_,
         at, uint32_t(value.type_));
  if (value.is_array()) {
    value.element_ = ValueType(cursor.read<uint32_t>(key));
    if (value.element_ == ValueType::array)
      fail(ErrorCode::kBadFile, "{}: at byte {}: an array of arrays; only flat arrays are allowed",
           value.where_, at + 4);
    if (!is_known(value.element_))
      fail(ErrorCode::kBadFile, "{}: at byte {}: element type {} is unknown (0 to 12 are known)",
           value.where_, at + 4, uint32_t(value.element_));
    value.count_ = cursor.read<uint64_t>(key);
  }
  const uint64_t start = cursor.offset();
  if (value.element_ == ValueType::string) {
    check_count(path, fmt::format("key '{}': string count", key), value.count_, kMaxStrings, 8,
                cursor.remaining());
    const auto rest = cursor.rest();
    value.strings_.reserve(value.count_);
    for (uint64_t i = 0; i < value.count_; ++i) value.strings_.push_back(cursor.string(key));
    value.raw_ = rest.first(cursor.offset() - start);
    return value;
  }
  const uint64_t size = fixed_size(value.element_);
  if (value.count_ > cursor.remaining() / size)
    fail(ErrorCode::kBadFile,
         "{}: at byte {}: {} elements of {} bytes but only {} bytes are left; the file is cut short or "
         "damaged",
         value.where_, at, value.count_, size, cursor.remaining());
  value.raw_ = cursor.take(value.count_ * size, key);
  if (value.element_ == ValueType::boolean) check_booleans(value.where_, value.raw_);
  return value;
}

namespace {

void parse_metadata(Part& part, Cursor& cursor, uint64_t n_keys) {
  const std::string& path = part.file.path();
  for (uint64_t i = 0; i < n_keys; ++i) {
    const uint64_t at = cursor.offset();
    const std::string_view key = cursor.string("a metadata key");
    check_name(path, at, "metadata key", key);
    if (!part.keys.emplace(key, part.metadata.size()).second)
      fail(ErrorCode::kBadFile, "{}: at byte {}: key '{}' appears twice", path, at, key);
    part.metadata.push_back({key, ValueParser::parse(cursor, path, key)});
  }
}

uint64_t read_alignment(const Part& part) {
  const Value* value = part.find("general.alignment");
  if (!value) return kDefaultAlignment;
  const int64_t alignment = value->integer();
  if (value->is_array() || alignment < int64_t(kMinAlignment) || alignment > int64_t(kMaxAlignment) ||
      !std::has_single_bit(uint64_t(alignment)))
    fail(ErrorCode::kBadFile, "{}: key 'general.alignment' is {}; a power of two from {} to {} is needed",
         part.file.path(), alignment, kMinAlignment, kMaxAlignment);
  return uint64_t(alignment);
}

// The file's own types are read only from files Kvasir wrote; other programs use the same ids for other
// bytes.
const formats::Format& find_format(const Part& part, std::string_view tensor, DType type) {
  const std::string& path = part.file.path();
  const auto own = formats::own_name(type);
  const Value* writer = part.find("general.quantized_by");
  const bool ours = writer && writer->element_type() == ValueType::string && writer->string() == "kvasir";
  if (!own.empty() && !ours)
    fail(ErrorCode::kRefused,
         "{}: tensor '{}' has type id {}, which is {} in Kvasir's files and another layout in those of a "
         "llama.cpp fork; "
         "required: general.quantized_by = kvasir; found: {}; quantize the original model again with kvasir",
         path, tensor, uint32_t(type), own, writer ? "another program" : "no such key");
  try {
    return formats::require(formats::require(type).name, formats::kWeights);
  } catch (const Error& error) {
    fail(error.code(), "{}: tensor '{}': {}", path, tensor, error.what());
  }
}

Shape parse_shape(Cursor& cursor, const std::string& path, std::string_view name) {
  const uint64_t at = cursor.offset();
  const auto n_dims = cursor.read<uint32_t>(name);
  if (n_dims < 1 || n_dims > 4)
    fail(ErrorCode::kBadFile, "{}: at byte {}: tensor '{}' has {} dimensions; 1 to 4 are allowed", path, at,
         name, n_dims);
  Shape shape;
  shape.n_dims = int(n_dims);
  int64_t count = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    const auto ne = cursor.read<uint64_t>(name);
    if (ne == 0)
      fail(ErrorCode::kBadFile, "{}: at byte {}: tensor '{}' has dimension {} of size 0", path, at, name, d);
    if (ne > uint64_t(INT64_MAX) || __builtin_mul_overflow(count, int64_t(ne), &count))
      fail(ErrorCode::kBadFile, "{}: at byte {}: tensor '{}': the product of its dimensions overflows", path,
           at, name);
    shape.ne[d] = int64_t(ne);
  }
  return shape;
}

struct Placement {
  uint64_t offset, bytes;
};

Placement parse_tensor(Part& part, Cursor& cursor) {
  const std::string& path = part.file.path();
  TensorInfo tensor;
  const uint64_t at = cursor.offset();
  tensor.name = cursor.string("a tensor name");
  check_name(path, at, "tensor", tensor.name);
  tensor.shape = parse_shape(cursor, path, tensor.name);
  tensor.type = DType(cursor.read<uint32_t>(tensor.name));
  const formats::Format& format = find_format(part, tensor.name, tensor.type);
  if (tensor.shape.ne[0] % format.block != 0)
    fail(ErrorCode::kBadFile,
         "{}: at byte {}: tensor '{}' {} has rows of {} values; {} needs a multiple of {}", path, at,
         tensor.name, tensor.shape.text(), tensor.shape.ne[0], format.name, format.block);
  Placement place{};
  if (__builtin_mul_overflow(uint64_t(tensor.shape.count()) / format.block, uint64_t(format.block_bytes),
                             &place.bytes))
    fail(ErrorCode::kBadFile, "{}: at byte {}: tensor '{}' {}: its size in bytes overflows", path, at,
         tensor.name, tensor.shape.text());
  place.offset = cursor.read<uint64_t>(tensor.name);
  if (place.offset % part.alignment != 0)
    fail(ErrorCode::kBadFile,
         "{}: at byte {}: tensor '{}' has data offset {}, which is not a multiple of the alignment {}", path,
         at, tensor.name, place.offset, part.alignment);
  part.tensors.push_back(tensor);
  return place;
}

// Gives each tensor its bytes, after checking that they lie in the file and that no two tensors share any.
void place_tensors(Part& part, const std::vector<Placement>& places) {
  const std::string& path = part.file.path();
  const uint64_t size = part.file.bytes().size();
  const uint64_t room = size > part.data_start ? size - part.data_start : 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const auto [offset, bytes] = places[i];
    if (bytes > room || offset > room - bytes)
      fail(ErrorCode::kBadFile,
           "{}: tensor '{}' {} needs {} bytes from byte {} on, but the file has {} bytes; it is cut short or "
           "damaged: fetch it "
           "again",
           path, part.tensors[i].name, part.tensors[i].shape.text(), bytes, part.data_start + offset, size);
    part.tensors[i].data = part.file.bytes().subspan(part.data_start + offset, bytes);
  }
  std::vector<size_t> order(places.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return places[a].offset < places[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Placement &before = places[order[i - 1]], &after = places[order[i]];
    if (before.offset + before.bytes > after.offset)
      fail(ErrorCode::kBadFile, "{}: tensors '{}' and '{}' overlap at byte {}", path,
           part.tensors[order[i - 1]].name, part.tensors[order[i]].name, part.data_start + after.offset);
  }
}

}  // namespace

std::unique_ptr<Part> parse_part(const std::string& path) {
  auto part = std::make_unique<Part>(path);
  Cursor cursor(part->file.path(), part->file.bytes());
  part->version = check_magic(path, part->file.bytes());
  cursor.take(8, "the magic and version");
  const auto n_tensors = cursor.read<uint64_t>("the tensor count");
  const auto n_keys = cursor.read<uint64_t>("the key count");
  check_count(path, "at byte 16: key count", n_keys, kMaxKeys, kLeastKeyBytes, cursor.remaining());
  check_count(path, "at byte 8: tensor count", n_tensors, kMaxTensors, kLeastTensorBytes, cursor.remaining());
  parse_metadata(*part, cursor, n_keys);
  part->alignment = read_alignment(*part);
  std::vector<Placement> places;
  std::unordered_set<std::string_view> names;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    places.push_back(parse_tensor(*part, cursor));
    if (!names.insert(part->tensors.back().name).second)
      fail(ErrorCode::kBadFile, "{}: tensor '{}' appears twice", path, part->tensors.back().name);
  }
  part->data_start = (cursor.offset() + part->alignment - 1) / part->alignment * part->alignment;
  place_tensors(*part, places);
  return part;
}

}  // namespace kvasir::gguf
