// What a file is when it is not a GGUF file this reader takes, said by name.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "gguf/parse.h"
#include "gguf/value_type.h"

namespace kvasir::gguf {
namespace {

struct OtherKind {
  std::string_view start;
  std::string_view what;
};

constexpr OtherKind kOthers[] = {
    {"PK\x03\x04", "a ZIP archive (PyTorch checkpoints are); convert it to GGUF first"},
    {"version https://git-lfs", "a Git LFS pointer, not the model; fetch the file itself (git lfs pull)"},
    {"<!DOCTYPE", "an HTML page, so the download went wrong; fetch the file again"},
    {"<!doctype", "an HTML page, so the download went wrong; fetch the file again"},
    {"<html", "an HTML page, so the download went wrong; fetch the file again"},
    {"lmgg", "an old GGML file (before GGUF); convert the original model to GGUF"},
    {"fmgg", "an old GGML file (before GGUF); convert the original model to GGUF"},
    {"tjgg", "an old GGML file (before GGUF); convert the original model to GGUF"},
    {"\x93NUMPY", "a NumPy array; convert the model to GGUF"},
    {"\x89HDF", "an HDF5 file; convert the model to GGUF"},
};

bool starts_with(std::span<const std::byte> bytes, std::string_view start) {
  return bytes.size() >= start.size() && std::memcmp(bytes.data(), start.data(), start.size()) == 0;
}

// Safetensors: u64 header length, then a JSON object.
bool is_safetensors(std::span<const std::byte> bytes) {
  if (bytes.size() < 10) return false;
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length > 1 && length <= bytes.size() - 8 && bytes[8] == std::byte('{');
}

}  // namespace

uint32_t check_magic(const std::string& path, std::span<const std::byte> bytes) {
  if (starts_with(bytes, "LITERTLM"))
    fail(ErrorCode::kRefused,
         "{}: this is a LiteRT-LM file (.litertlm); required: GGUF; supported: GGUF v2 and v3; missing: a "
         "LiteRT-LM runtime, "
         "which owns its graph. Run it with LiteRT-LM, or use the GGUF file of the same model",
         path);
  for (const OtherKind& other : kOthers)
    if (starts_with(bytes, other.start))
      fail(ErrorCode::kBadFile, "{}: not a GGUF file but {}", path, other.what);
  if (is_safetensors(bytes))
    fail(ErrorCode::kBadFile, "{}: not a GGUF file but safetensors; convert the model to GGUF", path);
  if (bytes.size() < 4 || !starts_with(bytes, "GGUF")) {
    std::string shown;
    for (size_t i = 0; i < std::min<size_t>(4, bytes.size()); ++i)
      shown += fmt::format("{:02x} ", uint8_t(bytes[i]));
    fail(ErrorCode::kBadFile, "{}: at byte 0: not a GGUF file (it starts with {}, 47 47 55 46 is needed)",
         path, shown.substr(0, shown.size() - 1));
  }
  uint32_t version = 0;
  if (bytes.size() < 8) fail(ErrorCode::kBadFile, "{}: at byte 4: the file ends before its version", path);
  std::memcpy(&version, bytes.data() + 4, sizeof version);
  if (version == 1)
    fail(ErrorCode::kBadFile, "{}: at byte 4: GGUF version 1 is no longer read; convert to version 3", path);
  if ((version & 0xffff) == 0 && version != 0)
    fail(ErrorCode::kBadFile,
         "{}: at byte 4: a big-endian GGUF file (version {}); convert it to little-endian", path,
         version >> 24);
  if (version != 2 && version != 3)
    fail(ErrorCode::kBadFile, "{}: at byte 4: GGUF version {} is unknown; versions 2 and 3 are read", path,
         version);
  return version;
}

}  // namespace kvasir::gguf
