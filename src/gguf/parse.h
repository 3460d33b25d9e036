// One GGUF file of a model, parsed: what File::open puts together from one or several of them.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/file.h"

namespace kvasir::gguf {

class Cursor;

struct Part {
  explicit Part(const std::string& path) : file(path) {}

  MappedFile file;
  uint32_t version = 0;
  uint64_t alignment = 0;
  uint64_t data_start = 0;
  std::vector<KeyValue> metadata;
  std::unordered_map<std::string_view, size_t> keys;  // index into metadata
  std::vector<TensorInfo> tensors;

  const Value* find(std::string_view key) const {
    const auto found = keys.find(key);
    return found == keys.end() ? nullptr : &metadata[found->second].value;
  }
};

struct ValueParser {
  // Reads type word(s) and value of `key` at the cursor.
  static Value parse(Cursor& cursor, const std::string& path, std::string_view key);
};

// Refuses what is not GGUF or not a readable version of it, with the reason; returns the version.
uint32_t check_magic(const std::string& path, std::span<const std::byte> bytes);

// Maps and checks one file. Throws Error{kBadFile} or Error{kRefused} as gguf/file.h says.
std::unique_ptr<Part> parse_part(const std::string& path);

}  // namespace kvasir::gguf
