// Names of split files: NAME-00001-of-0000N.gguf.
#pragma once
#include <string>

namespace kvasir::gguf {

// The path of part `part` (from 0) beside the first part. Throws Error{kBadFile} when `first` is not named like a first part
// of n_parts.
std::string split_part_path(const std::string& first, int part, int n_parts);

}  // namespace kvasir::gguf
