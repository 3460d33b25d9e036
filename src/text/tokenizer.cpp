#include "text/tokenizer.h"

#include <algorithm>

#include "text/gemma_tokenizer.h"

namespace kvasir::text {

std::unique_ptr<Tokenizer> Tokenizer::create(Vocabulary vocabulary) {
  return std::make_unique<GemmaTokenizer>(vocabulary);
}

bool Tokenizer::is_end(Token id) const {
  const std::vector<Token>& ids = end_ids();
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string Tokenizer::decode(std::span<const Token> ids, bool show_special) const {
  std::string text;
  for (const Token id : ids) text += piece(id, show_special);
  return text;
}

}  // namespace kvasir::text
