#include "gguf/geometry.h"

namespace kvasir::gguf {

namespace {

// Source: the published configurations (docs/models.md); research values were checked against two reference
// implementations.
constexpr Geometry kGeometries[] = {
    // name, arch, layers, embd, ff, heads, kv sliding, kv global, head sliding, head global, period, window,
    // shared, ff shared,
    // K=V, PLE, experts, used, expert ff, context, vocabulary, rope factor
    {"gemma4-e2b", "gemma4", 35,    1536,  6144, 8, 1, 1, 256,    512,    5,
     512,          20,       12288, false, 256,  0, 0, 0, 131072, 262144, 1},
    {"gemma4-e4b", "gemma4", 42, 2560,  10240, 8, 2, 2, 256,    512,    6,
     512,          18,       0,  false, 256,   0, 0, 0, 131072, 262144, 1},
    {"gemma4-12b", "gemma4", 48, 3840, 15360, 16, 8, 1, 256,    512,    6,
     1024,         0,        0,  true, 0,     0,  0, 0, 262144, 262144, 1},
    {"gemma4-26b-a4b", "gemma4", 30, 2816, 2112, 16, 8, 2, 256, 512, 6, 1024, 0, 0, true, 0, 128, 8, 704,
     262144,           262144,   1},
    {"gemma4-31b", "gemma4", 60, 5376, 21504, 32, 16, 4, 256,    512,    6,
     1024,         0,        0,  true, 0,     0,  0,  0, 262144, 262144, 1},
    {"gemma3-270m", "gemma3", 18, 640,   2048, 4, 1, 1, 256,   256,    6,
     512,           0,        0,  false, 0,    0, 0, 0, 32768, 262144, 1},
    {"gemma3-27b", "gemma3", 62, 5376,  21504, 32, 16, 16, 128,    128,    6,
     1024,         0,        0,  false, 0,     0,  0,  0,  131072, 262144, 8},
    {"tiny", "gemma4", 10, 256, 512, 4, 1, 1, 256, 512, 5, 512, 5, 1024, false, 32, 0, 0, 0, 8192, 4096, 1},
};

}  // namespace

std::span<const Geometry> geometries() { return kGeometries; }

const Geometry* find_geometry(std::string_view name) {
  for (const Geometry& geometry : kGeometries)
    if (geometry.name == name) return &geometry;
  return nullptr;
}

std::string geometry_names() {
  std::string names;
  for (const Geometry& geometry : kGeometries)
    names += (names.empty() ? "" : ", ") + std::string(geometry.name);
  return names;
}

}  // namespace kvasir::gguf
