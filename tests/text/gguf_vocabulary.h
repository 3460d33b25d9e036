// Vocabularies of real files for the tests.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "gguf/file.h"
#include "text/tokenizer.h"

namespace kvasir::text {

struct FileVocabulary {
  std::shared_ptr<const gguf::File> file;  // owns the texts
  Vocabulary vocabulary;
  std::string chat_template;
};

inline FileVocabulary load_vocabulary(const std::string& path) {
  FileVocabulary out{gguf::File::open(path), {}, {}};
  const gguf::File& file = *out.file;
  Vocabulary& v = out.vocabulary;
  v.kind = file.string("tokenizer.ggml.model") == "llama" ? TokenizerKind::kSpm : TokenizerKind::kBpe;
  const gguf::Value& tokens = file.require("tokenizer.ggml.tokens");
  for (uint64_t i = 0; i < tokens.count(); ++i) v.tokens.push_back(tokens.string(i));
  const gguf::Value& types = file.require("tokenizer.ggml.token_type");
  for (uint64_t i = 0; i < types.count(); ++i) v.types.push_back(static_cast<TokenType>(types.integer(i)));
  if (const gguf::Value* scores = file.find("tokenizer.ggml.scores")) {
    for (uint64_t i = 0; i < scores->count(); ++i) v.scores.push_back(static_cast<float>(scores->number(i)));
  }
  if (const gguf::Value* merges = file.find("tokenizer.ggml.merges")) {
    for (uint64_t i = 0; i < merges->count(); ++i) v.merges.push_back(merges->string(i));
  }
  v.bos = static_cast<Token>(file.integer_or("tokenizer.ggml.bos_token_id", -1));
  v.eos = static_cast<Token>(file.integer_or("tokenizer.ggml.eos_token_id", -1));
  v.unk = static_cast<Token>(file.integer_or("tokenizer.ggml.unknown_token_id", -1));
  v.pad = static_cast<Token>(file.integer_or("tokenizer.ggml.padding_token_id", -1));
  if (const gguf::Value* chat = file.find("tokenizer.chat_template")) out.chat_template = chat->string();
  return out;
}

inline std::string tiny_gemma4_path() { return KVASIR_SOURCE_DIR "/models/tiny-gemma4-f16.gguf"; }

// The real Gemma 3 270M file, or "" when it is not on this machine.
inline std::string gemma3_270m_path() {
  std::string path;
  if (const char* given = std::getenv("KVASIR_TEST_GEMMA3_270M")) {
    path = given;
  } else if (const char* home = std::getenv("HOME")) {
    path = std::string(home) + "/.cache/kvasir/gemma-3-270m-q4_k_m.gguf";
  }
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace kvasir::text
