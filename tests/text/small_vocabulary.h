// Hand-made vocabularies for the tests.
#pragma once
#include <fmt/format.h>

#include <deque>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace kvasir::text {

// Owns the texts that the Vocabulary views.
class SmallVocabulary {
 public:
  // <pad> <eos> <bos> <unk> = 0..3, then the 256 byte tokens 4..259.
  explicit SmallVocabulary(TokenizerKind kind) {
    vocabulary.kind = kind;
    for (const char* text : {"<pad>", "<eos>", "<bos>"}) add(text, TokenType::control);
    add("<unk>", TokenType::unknown);
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::byte);
    vocabulary.pad = 0;
    vocabulary.eos = 1;
    vocabulary.bos = 2;
    vocabulary.unk = 3;
  }

  Token add(std::string text, TokenType type = TokenType::normal, float score = -1000) {
    vocabulary.tokens.push_back(keep(std::move(text)));
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(score);
    return static_cast<Token>(vocabulary.tokens.size()) - 1;
  }
  void merge(std::string text) { vocabulary.merges.push_back(keep(std::move(text))); }

  Vocabulary vocabulary;

 private:
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  std::deque<std::string> texts_;
};

}  // namespace kvasir::text
