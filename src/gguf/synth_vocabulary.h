// A made-up vocabulary laid out like Gemma's: special ids where the models have them, byte tokens, single
// characters, then pieces of words, each built from a shorter one by a merge.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/geometry.h"

namespace kvasir::gguf {

struct SynthVocabulary {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;       // GGUF token types
  std::vector<std::string> merges;  // gemma4 only
};

SynthVocabulary synth_vocabulary(const Geometry& geometry);

}  // namespace kvasir::gguf
