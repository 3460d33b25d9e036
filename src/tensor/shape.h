// Shape of a tensor in GGUF order: ne[0] is contiguous.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace kvasir {

struct Shape {
  std::array<int64_t, 4> ne{1, 1, 1, 1};
  int n_dims = 1;

  int64_t count() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
  int64_t rows() const { return ne[1] * ne[2] * ne[3]; }
  bool operator==(const Shape& other) const { return ne == other.ne; }
  // "[640, 2048]"
  std::string text() const {
    std::string out = fmt::format("[{}", ne[0]);
    for (int i = 1; i < n_dims; ++i) out += fmt::format(", {}", ne[i]);
    return out + "]";
  }
};

}  // namespace kvasir
