// Model files with random weights in a published geometry: valid blocks, realistic type mixes, a vocabulary
// that loads. For measuring speed and memory; the text such a model makes means nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/geometry.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace kvasir::gguf {

struct SynthTensor {
  std::string name;
  DType type;
  Shape shape;
};

struct SynthOptions {
  std::string type =
      "q8_0";  // a recipe (gguf/recipe.h): one type for all matrices, or a mix such as "q4_k" (Q4_K_M)
  bool header_only = false;  // metadata and shapes; the data are a hole in a sparse file
  uint64_t seed = 1;
  std::function<void(float)> progress = {};  // 0..1
};

// The tensors such a file holds. Throws Error{kUsage} for an unknown or unusable type.
std::vector<SynthTensor> synth_tensors(const Geometry& geometry, std::string_view type);
// Bytes of their data.
uint64_t synth_bytes(const Geometry& geometry, std::string_view type);
// Weights of the model, every tensor but the rope factors.
uint64_t n_params(const Geometry& geometry);

// Writes OUT. Throws Error{kFailed} when it cannot be written (disk full included; nothing half-written
// stays), Error{kUsage} for a bad type.
void synthesize(const Geometry& geometry, const std::string& out, const SynthOptions& options);

}  // namespace kvasir::gguf
