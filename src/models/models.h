// From a checked model file to a graph. One function an architecture; `build_graph` picks by the file's own key.
#pragma once
#include "gguf/file.h"
#include "gguf/model_config.h"
#include "graph/graph.h"

namespace kvasir::models {

// Throws Error{kBadFile} naming the tensor for a missing tensor or a wrong shape, Error{kRefused} for an architecture that is
// not built.
graph::Graph build_graph(const gguf::File& file, const gguf::ModelConfig& config);

graph::Graph build_gemma3(const gguf::File& file, const gguf::ModelConfig& config);
graph::Graph build_gemma4(const gguf::File& file, const gguf::ModelConfig& config);

}  // namespace kvasir::models
