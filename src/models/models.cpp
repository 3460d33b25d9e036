#include "models/models.h"

#include "base/error.h"

namespace kvasir::models {

graph::Graph build_graph(const gguf::File& file, const gguf::ModelConfig& config) {
  if (config.arch == "gemma3") return build_gemma3(file, config);
  if (config.arch == "gemma4") return build_gemma4(file, config);
  fail(ErrorCode::kRefused, "{}: architecture '{}' is not supported; supported: gemma3, gemma4", file.path(), config.arch);
}

}  // namespace kvasir::models
