#include "gguf/split.h"

#include "base/error.h"

namespace kvasir::gguf {

std::string split_part_path(const std::string& first, int part, int n_parts) {
  const std::string suffix = fmt::format("-00001-of-{:05}.gguf", n_parts);
  if (first.size() <= suffix.size() || first.compare(first.size() - suffix.size(), suffix.size(), suffix) != 0)
    fail(ErrorCode::kBadFile, "{}: key 'split.count' says {} parts, so the first must be named NAME{}", first, n_parts, suffix);
  return fmt::format("{}-{:05}-of-{:05}.gguf", first.substr(0, first.size() - suffix.size()), part + 1, n_parts);
}

}  // namespace kvasir::gguf
