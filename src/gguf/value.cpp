// Typed access to metadata values.
#include <cstring>
#include <limits>

#include "base/error.h"
#include "gguf/file.h"
#include "gguf/value_type.h"

namespace kvasir::gguf {
namespace {

template <typename T>
T load(std::span<const std::byte> raw, uint64_t i) {
  T value;
  std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));
  return value;
}

[[noreturn]] void wrong_kind(const std::string& where, ValueType found, std::string_view wanted) {
  fail(ErrorCode::kBadFile, "{} holds {}; {} is needed", where, type_name(found), wanted);
}

void check_index(const std::string& where, uint64_t i, uint64_t count) {
  if (i >= count) fail(ErrorCode::kBadFile, "{} has {} elements; element {} is needed", where, count, i);
}

}  // namespace

int64_t Value::integer(uint64_t i) const {
  check_index(where_, i, count_);
  switch (element_) {
    case ValueType::u8:
      return load<uint8_t>(raw_, i);
    case ValueType::i8:
      return load<int8_t>(raw_, i);
    case ValueType::u16:
      return load<uint16_t>(raw_, i);
    case ValueType::i16:
      return load<int16_t>(raw_, i);
    case ValueType::u32:
      return load<uint32_t>(raw_, i);
    case ValueType::i32:
      return load<int32_t>(raw_, i);
    case ValueType::boolean:
      return load<uint8_t>(raw_, i);
    case ValueType::i64:
      return load<int64_t>(raw_, i);
    case ValueType::u64: {
      const auto value = load<uint64_t>(raw_, i);
      if (value > uint64_t(std::numeric_limits<int64_t>::max()))
        fail(ErrorCode::kBadFile, "{} is {}, which does not fit a signed 64-bit integer", where_, value);
      return int64_t(value);
    }
    default:
      wrong_kind(where_, element_, "an integer");
  }
}

double Value::number(uint64_t i) const {
  check_index(where_, i, count_);
  if (element_ == ValueType::f32) return load<float>(raw_, i);
  if (element_ == ValueType::f64) return load<double>(raw_, i);
  if (element_ == ValueType::string) wrong_kind(where_, element_, "a number");
  return double(integer(i));
}

bool Value::boolean(uint64_t i) const {
  check_index(where_, i, count_);
  if (element_ == ValueType::string || element_ == ValueType::f32 || element_ == ValueType::f64)
    wrong_kind(where_, element_, "a boolean");
  const int64_t value = integer(i);
  if (value != 0 && value != 1)
    fail(ErrorCode::kBadFile, "{} is {}; a boolean (0 or 1) is needed", where_, value);
  return value == 1;
}

std::string_view Value::string(uint64_t i) const {
  check_index(where_, i, count_);
  if (element_ != ValueType::string) wrong_kind(where_, element_, "a string");
  return strings_[i];
}

}  // namespace kvasir::gguf
