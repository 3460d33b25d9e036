// GGUF v2/v3 reader. Maps the file (or every part of a split file) and checks all of it before handing anything out:
// no offset, count, dimension product or string length of the file is trusted. Every fault throws Error{kBadFile} whose
// message names the file, the key or tensor, the byte offset and the reason. Source: research notes and docs/formats.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace kvasir::gguf {

enum class ValueType : uint32_t {
  u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9, u64 = 10, i64 = 11, f64 = 12,
};

// A metadata value as a checked view into the mapping.
class Value {
 public:
  ValueType type() const { return type_; }
  // For arrays: element type and count; for scalars type() and 1.
  ValueType element_type() const { return element_; }
  uint64_t count() const { return count_; }
  bool is_array() const { return type_ == ValueType::array; }

  // Element i of an array, or the scalar at i = 0. Integers of any width, and bools, convert to int64; integers and floats to
  // double. Throws Error{kBadFile} on a wrong kind or on an integer that does not fit.
  int64_t integer(uint64_t i = 0) const;
  double number(uint64_t i = 0) const;
  bool boolean(uint64_t i = 0) const;
  std::string_view string(uint64_t i = 0) const;
  // Bytes of the value as stored, without its type word(s) and an array's count, for writers that preserve unknown keys.
  std::span<const std::byte> raw() const { return raw_; }

 private:
  friend struct ValueParser;
  std::string where_;  // "FILE: key 'K'" for messages
  ValueType type_{}, element_{};
  uint64_t count_ = 1;
  std::span<const std::byte> raw_;
  std::vector<std::string_view> strings_;  // filled for strings and arrays of strings
};

struct KeyValue {
  std::string_view key;
  Value value;
};

struct TensorInfo {
  std::string_view name;
  DType type{};
  Shape shape;
  std::span<const std::byte> data;  // inside the mapping of the part that holds it
  int part = 0;                     // which file of a split holds it
};

class File {
 public:
  // Opens PATH; if it is a split file (`-00001-of-0000N`), opens every part.
  static std::shared_ptr<const File> open(const std::string& path);
  ~File();

  const std::string& path() const;
  uint64_t file_bytes() const;  // all parts
  uint32_t version() const;
  std::span<const KeyValue> metadata() const;
  std::span<const TensorInfo> tensors() const;

  const Value* find(std::string_view key) const;           // nullptr when absent
  const TensorInfo* find_tensor(std::string_view name) const;  // nullptr when absent
  // Throw Error{kBadFile} naming file and key when absent or of the wrong kind.
  const Value& require(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  int64_t integer_or(std::string_view key, int64_t fallback) const;
  double number(std::string_view key) const;
  double number_or(std::string_view key, double fallback) const;
  std::string_view string(std::string_view key) const;
  // Throws Error{kBadFile} naming file and tensor when absent.
  const TensorInfo& require_tensor(std::string_view name) const;

  // Lets the pages of this tensor's bytes go (after it was repacked).
  void drop(const TensorInfo& tensor) const;

 private:
  File();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::gguf
