// Builds GGUF files byte by byte, right or wrong, independently of gguf::Writer.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace kvasir::gguf::test {

// A folder that goes away with its owner.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvasir-gguf-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string file(std::string_view name) const { return (path_ / name).string(); }
  std::string folder() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);  // truncating an existing file makes some file systems flush it
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

// Appends fields in file order.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
    return *this;
  }
  Bytes& u8(uint8_t v) { return put(v); }
  Bytes& u32(uint32_t v) { return put(v); }
  Bytes& u64(uint64_t v) { return put(v); }
  Bytes& f32(float v) { return put(v); }
  Bytes& raw(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  Bytes& string(std::string_view text) { return u64(text.size()).raw(text); }
  Bytes& header(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
    return raw("GGUF").u32(version).u64(n_tensors).u64(n_keys);
  }
  Bytes& key_u32(std::string_view key, uint32_t v) { return string(key).u32(4).u32(v); }
  Bytes& key_string(std::string_view key, std::string_view v) { return string(key).u32(8).string(v); }
  // A 1-D tensor of n values.
  Bytes& tensor(std::string_view name, uint64_t n, uint32_t type, uint64_t offset) {
    return string(name).u32(1).u64(n).u32(type).u64(offset);
  }
  Bytes& pad(size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& zeros(size_t n) {
    bytes_.append(n, '\0');
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace kvasir::gguf::test
