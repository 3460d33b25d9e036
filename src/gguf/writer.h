// GGUF v3 writer: metadata first, then tensors streamed in order, so that a file larger than memory can be written.
// Writes to PATH.tmp and renames on finish(); on any failure (disk full included) throws Error{kFailed} naming the path and
// the system's reason, and removes the partial file.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gguf/file.h"

namespace kvasir::gguf {

class Writer {
 public:
  explicit Writer(std::string path, uint32_t alignment = 32);
  ~Writer();

  void add_u32(std::string_view key, uint32_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_u64(std::string_view key, uint64_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_i32_array(std::string_view key, std::span<const int32_t> values);
  void add_u32_array(std::string_view key, std::span<const uint32_t> values);
  void add_f32_array(std::string_view key, std::span<const float> values);
  void add_bool_array(std::string_view key, std::span<const uint8_t> values);
  void add_string_array(std::string_view key, std::span<const std::string_view> values);
  // Copies a key of another file unchanged, whatever its type.
  void add_copy(const KeyValue& pair);

  // Declares a tensor; data follow in the order of declaration.
  void add_tensor(std::string_view name, DType type, const Shape& shape);
  // Writes header; after this only data() and finish().
  void begin_data();
  // Appends bytes of the current tensor; moves to the next when it is full.
  void data(std::span<const std::byte> bytes);
  // Header only: the tensors' bytes are left as a hole of the right length (a sparse file).
  void finish_header_only();
  // Checks that every tensor was written, flushes, renames.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::gguf
