// Tokenizer of both Gemma families: SPM (best score) and BPE (best rank) differ only in how a pair of symbols
// is judged.
//
// Text is cut wherever no token could span the cut, which leaves pieces of about a word. Cutting there cannot
// change the result, so each distinct word of a text is merged once and copied afterwards.
#pragma once
#include <array>
#include <bitset>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/merge_table.h"
#include "text/special_matcher.h"
#include "text/token_table.h"
#include "text/tokenizer.h"

namespace kvasir::text {

class GemmaTokenizer final : public Tokenizer {
 public:
  explicit GemmaTokenizer(const Vocabulary& vocabulary);

  std::vector<Token> encode(std::string_view text, bool parse_special) const override;
  std::string piece(Token id, bool show_special) const override;
  int size() const override { return table_.size(); }
  Token bos() const override { return bos_; }
  Token eos() const override { return eos_; }
  bool add_bos() const override { return add_bos_; }
  Token find(std::string_view token_text) const override;
  const std::vector<Token>& end_ids() const override { return end_ids_; }

 private:
  class Encoder;

  void read_bytes();
  void read_specials();
  void read_joins();
  void read_characters();
  void read_end_ids();

  TokenizerKind kind_;
  Token bos_, eos_, unk_;
  bool add_bos_;
  std::vector<TokenType> types_;
  TokenTable table_;
  std::vector<uint32_t> priorities_;  // kSpm: of each token; kNoMerge: never the result of a merge
  MergeTable merges_;                 // kBpe
  SpecialMatcher specials_;
  std::array<Token, 256> bytes_;  // -1: no such byte token
  std::array<Token, 128> ascii_;  // token of one character
  std::bitset<65536> joins_;      // first byte << 8 | second: the two stand next to each other in some token
  std::vector<Token> end_ids_;
};

}  // namespace kvasir::text
