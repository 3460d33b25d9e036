// The identity of a model file's content.
#pragma once
#include <string>

#include "gguf/file.h"

namespace kvasir::engine {

// SHA-256 (hex) over the metadata (keys, types, bytes) and the tensors (names, types, shapes, and the digests
// of their bytes in pieces of 4 MiB, which threads share). Keys of the splitting itself (split.*) do not
// count.
std::string content_hash(const gguf::File& file, int n_threads);

}  // namespace kvasir::engine
