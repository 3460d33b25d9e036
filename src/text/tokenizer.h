// Text <-> token ids for the Gemma families. Both never split on white space and write a space as U+2581.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

using Token = int32_t;

enum class TokenizerKind { kSpm, kBpe };  // Gemma 3: merge the best-scored pair; Gemma 4: merge ranks

// GGUF token types.
enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

// Everything a tokenizer needs, as a model file gives it. The views must outlive the tokenizer.
struct Vocabulary {
  TokenizerKind kind = TokenizerKind::kSpm;
  std::vector<std::string_view> tokens;
  std::vector<float> scores;             // kSpm
  std::vector<TokenType> types;          // may be empty: all normal
  std::vector<std::string_view> merges;  // kBpe: "left right"
  Token bos = -1, eos = -1, unk = -1, pad = -1;
  bool add_bos = true;
};

class Tokenizer {
 public:
  // Throws Error{kBadFile} when the vocabulary contradicts itself (merge of unknown tokens, id out of range,
  // ...).
  static std::unique_ptr<Tokenizer> create(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;

  // `parse_special`: control tokens in the text ("<|turn>") become their ids; user-defined tokens always do.
  // No BOS is added. Invalid UTF-8 throws Error{kUsage} with the byte offset.
  virtual std::vector<Token> encode(std::string_view text, bool parse_special) const = 0;
  // Bytes of one token (U+2581 -> space; byte tokens -> one byte). Control tokens give "" unless
  // `show_special`.
  virtual std::string piece(Token id, bool show_special = false) const = 0;
  virtual int size() const = 0;
  virtual Token bos() const = 0;
  virtual Token eos() const = 0;
  virtual bool add_bos() const = 0;
  // -1 when no such token.
  virtual Token find(std::string_view token_text) const = 0;
  // Ids that end a generation: eos, <end_of_turn>/<turn|>, <|tool_response>; never `</s>`.
  virtual const std::vector<Token>& end_ids() const = 0;
  bool is_end(Token id) const;

  std::string decode(std::span<const Token> ids, bool show_special = false) const;
};

// Turns a stream of tokens into text without ever splitting a UTF-8 character: bytes of an unfinished
// character are held back; bytes that can never become valid are replaced by U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false)
      : tokenizer_(&tokenizer), show_special_(show_special) {}
  std::string push(Token id);
  std::string finish();  // what is still held back

 private:
  const Tokenizer* tokenizer_;
  bool show_special_;
  std::string held_;
};

}  // namespace kvasir::text
