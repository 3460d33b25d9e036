// Broken and unusual model files, made from tiny-gemma4: headers only, so they cost no disk.
#pragma once
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "formats/format.h"
#include "gguf/file.h"
#include "gguf/writer.h"

namespace kvasir::cli_test {

namespace fs = std::filesystem;

struct Change {
  std::string drop_tensor;     // left out
  std::string reshape_tensor;  // loses half of its first dimension
  std::string arch;            // replaces general.architecture
};

inline void write_variant(const gguf::File& source, const fs::path& path, const Change& change) {
  gguf::Writer writer(path.string());
  for (const gguf::KeyValue& pair : source.metadata()) {
    if (pair.key == "general.architecture" && !change.arch.empty())
      writer.add_string(pair.key, change.arch);
    else
      writer.add_copy(pair);
  }
  for (const gguf::TensorInfo& tensor : source.tensors()) {
    if (tensor.name == change.drop_tensor) continue;
    Shape shape = tensor.shape;
    if (tensor.name == change.reshape_tensor) shape.ne[0] /= 2;
    writer.add_tensor(tensor.name, tensor.type, shape);
  }
  writer.finish_header_only();
}

inline void write_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Overwrites the type id of one tensor: name, u32 n_dims, u64 dims, u32 type.
inline void patch_type(const fs::path& path, std::string_view tensor, uint32_t id) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  std::string head(1 << 20, '\0');
  file.read(head.data(), long(head.size()));
  file.clear();
  size_t at = head.find(tensor) + tensor.size();
  uint32_t n_dims = 0;
  std::memcpy(&n_dims, head.data() + at, 4);
  file.seekp(long(at + 4 + 8 * n_dims));
  file.write(reinterpret_cast<const char*>(&id), 4);
}

inline void write_fixtures(const std::string& models, const fs::path& folder) {
  const auto source = gguf::File::open(models + "/tiny-gemma4-q8_0.gguf");
  fs::create_directories(folder / "a-folder");
  write_bytes(folder / "text.gguf",
              "This is no model.\nIt is a text file that someone renamed, long enough for a header.\n");
  write_bytes(folder / "empty.gguf", "");
  write_bytes(folder / "model.litertlm",
              std::string("LITERTLM\x01\0\0\0\0\0\0\0", 16) + std::string(64, '\0'));
  write_bytes(folder / "version1.gguf", std::string("GGUF\x01\0\0\0", 8) + std::string(64, '\0'));
  write_bytes(folder / "latin1.txt", "caf\xe9 au lait");
  write_bytes(folder / "short.txt", "Too short for a window.\n");
  write_variant(*source, folder / "no-output-norm.gguf",
                {.drop_tensor = "output_norm.weight", .reshape_tensor = "", .arch = ""});
  write_variant(*source, folder / "wrong-shape.gguf",
                {.drop_tensor = "", .reshape_tensor = "blk.3.attn_q.weight", .arch = ""});
  write_variant(*source, folder / "other-arch.gguf",
                {.drop_tensor = "", .reshape_tensor = "", .arch = "mamba"});
  for (uint32_t id : {44u, 46u, 50u, 200u}) {
    const fs::path path = folder / ("type-" + std::to_string(id) + ".gguf");
    write_variant(*source, path, {});
    patch_type(path, "blk.2.ffn_up.weight", id);
  }
  std::string truncated(100000, '\0');
  std::ifstream(models + "/tiny-gemma4-q8_0.gguf", std::ios::binary)
      .read(truncated.data(), long(truncated.size()));
  write_bytes(folder / "truncated.gguf", truncated);
}

}  // namespace kvasir::cli_test
