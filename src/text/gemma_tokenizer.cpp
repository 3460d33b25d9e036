#include "text/gemma_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "text/quote.h"
#include "text/utf8.h"

namespace kvasir::text {
namespace {

void check(const Vocabulary& v) {
  const size_t size = v.tokens.size();
  if (size == 0) fail(ErrorCode::kBadFile, "vocabulary: it has no tokens");
  if (size > static_cast<size_t>(std::numeric_limits<Token>::max())) {
    fail(ErrorCode::kBadFile, "vocabulary: {} tokens; the limit is 2147483647", size);
  }
  if (!v.types.empty() && v.types.size() != size) {
    fail(ErrorCode::kBadFile, "vocabulary: {} token types for {} tokens", v.types.size(), size);
  }
  if (v.kind == TokenizerKind::kSpm && v.scores.size() != size) {
    fail(ErrorCode::kBadFile,
         "vocabulary: {} scores for {} tokens; a SentencePiece vocabulary needs one each", v.scores.size(),
         size);
  }
  if (v.kind == TokenizerKind::kBpe && v.merges.empty()) {
    fail(ErrorCode::kBadFile, "vocabulary: no merges; a BPE vocabulary needs them (scores cannot stand in)");
  }
  const struct {
    const char* name;
    Token id;
  } ids[] = {{"bos", v.bos}, {"eos", v.eos}, {"unknown", v.unk}, {"padding", v.pad}};
  for (const auto& [name, id] : ids) {
    if (id < -1 || id >= static_cast<int64_t>(size)) {
      fail(ErrorCode::kBadFile, "vocabulary: the {} token id is {}; there are {} tokens", name, id, size);
    }
  }
}

// The value of "<0xHH>", or -1.
int byte_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Types of the tokens, checked, with what files are known to leave out filled in.
std::vector<TokenType> checked_types(const Vocabulary& v) {
  check(v);
  std::vector<TokenType> types(v.tokens.size(), TokenType::normal);
  // Parts of an answer that its reader needs to see; some converters mark them as control tokens.
  constexpr std::string_view kVisible[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                           "<tool_call|>", "<tool_response|>", "<|\"|>"};
  for (size_t i = 0; i < types.size(); ++i) {
    if (v.types.empty()) {
      if (byte_value(v.tokens[i]) >= 0) types[i] = TokenType::byte;
      continue;
    }
    const auto number = static_cast<unsigned>(v.types[i]);
    if (number > static_cast<unsigned>(TokenType::byte)) {
      fail(ErrorCode::kBadFile, "vocabulary: token {} ({}) has type {}; known types are 1..6", i,
           quote(v.tokens[i]), number);
    }
    if (number != 0) types[i] = v.types[i];  // 0: undefined, taken as normal
    if (types[i] == TokenType::byte && byte_value(v.tokens[i]) < 0) {
      fail(ErrorCode::kBadFile, "vocabulary: token {} is of type byte but reads {}; expected <0xHH>", i,
           quote(v.tokens[i]));
    }
    if (types[i] == TokenType::control && v.kind == TokenizerKind::kBpe &&
        std::find(std::begin(kVisible), std::end(kVisible), v.tokens[i]) != std::end(kVisible)) {
      types[i] = TokenType::user_defined;
    }
  }
  return types;
}

// Only these may come out of a merge: text that spells a control token stays text.
std::vector<uint8_t> mergeable(std::span<const TokenType> types) {
  std::vector<uint8_t> flags(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    flags[i] = types[i] == TokenType::normal || types[i] == TokenType::user_defined;
  }
  return flags;
}

// Maps scores to integers in the opposite order, equal to equal. Works on the bits of the float, whose order
// is that of sign and magnitude.
uint32_t priority_of_score(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 equals 0
  return ~(bits & 0x80000000 ? ~bits : bits | 0x80000000);
}

}  // namespace

GemmaTokenizer::GemmaTokenizer(const Vocabulary& v)
    : kind_(v.kind),
      bos_(v.bos),
      eos_(v.eos),
      unk_(v.unk),
      add_bos_(v.add_bos ||
               v.kind == TokenizerKind::kBpe),  // without BOS Gemma 4 emits junk, whatever its file says
      types_(checked_types(v)),
      table_(v.tokens, mergeable(types_)) {
  if (kind_ == TokenizerKind::kBpe) {
    merges_ = MergeTable(v.merges, table_);
  } else {
    priorities_.assign(types_.size(), kNoMerge);
    for (size_t i = 0; i < types_.size(); ++i) {
      if (std::isnan(v.scores[i]))
        fail(ErrorCode::kBadFile, "vocabulary: the score of token {} is not a number", i);
      if (types_[i] == TokenType::normal || types_[i] == TokenType::user_defined) {
        priorities_[i] = priority_of_score(v.scores[i]);
      }
    }
  }
  read_bytes();
  read_characters();
  read_specials();
  read_joins();
  read_end_ids();
}

void GemmaTokenizer::read_bytes() {
  bytes_.fill(-1);
  for (Token id = 0; id < size(); ++id) {
    if (types_[id] != TokenType::byte) continue;
    Token& slot = bytes_[byte_value(table_.text(id))];
    if (slot < 0) slot = id;
  }
  if (unk_ >= 0) return;
  for (int byte = 0; byte < 256; ++byte) {
    if (bytes_[byte] < 0) {
      fail(ErrorCode::kBadFile,
           "vocabulary: no byte token <0x{:02X}> and no unknown token to stand in for it", byte);
    }
  }
}

void GemmaTokenizer::read_characters() {
  for (int c = 0; c < 128; ++c) {
    const char character = static_cast<char>(c);
    const Token id = table_.find({&character, 1});
    ascii_[c] =
        id >= 0 && (types_[id] == TokenType::normal || types_[id] == TokenType::user_defined) ? id : -1;
  }
}

void GemmaTokenizer::read_specials() {
  std::vector<SpecialMatcher::Entry> entries;
  for (Token id = 0; id < size(); ++id) {
    const TokenType type = types_[id];
    const bool control = type == TokenType::control || type == TokenType::unknown;
    if (!control && type != TokenType::user_defined) continue;
    // A match of half a character would leave the other half behind.
    if (find_invalid_utf8(table_.text(id)) != std::string_view::npos) continue;
    entries.push_back({table_.text(id), id, control});
  }
  specials_ = SpecialMatcher(std::move(entries));
}

void GemmaTokenizer::read_joins() {
  std::vector<uint8_t> seen(65536);
  for (Token id = 0; id < size(); ++id) {
    const std::string_view text = table_.text(id);
    for (size_t i = 1; i < text.size(); ++i) {
      seen[static_cast<uint8_t>(text[i - 1]) << 8 | static_cast<uint8_t>(text[i])] = 1;
    }
  }
  for (int first = 0; first < 256; ++first) {
    // Gemma 4 keeps runs of newlines apart from all else.
    const auto apart = [&](int second) {
      return kind_ == TokenizerKind::kBpe && (first == '\n') != (second == '\n');
    };
    for (int second = 0; second < 256; ++second) {
      const bool inside_character = second >= 0x80 && second < 0xC0;
      joins_[first << 8 | second] = inside_character || (seen[first << 8 | second] && !apart(second));
    }
  }
}

void GemmaTokenizer::read_end_ids() {
  if (eos_ >= 0) end_ids_.push_back(eos_);
  // By text, for files whose eos key names only one of them. "</s>" is an HTML tag in these vocabularies,
  // never an end.
  for (const std::string_view text : {"<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>"}) {
    const Token id = find(text);
    if (id >= 0 && types_[id] != TokenType::normal) end_ids_.push_back(id);
  }
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
}

Token GemmaTokenizer::find(std::string_view token_text) const {
  std::string canonical;
  append_canonical(canonical, token_text);
  return table_.find(canonical);
}

std::string GemmaTokenizer::piece(Token id, bool show_special) const {
  if (id < 0 || id >= size()) {
    fail(ErrorCode::kUsage, "token id {} is not in the vocabulary; ids are 0..{}", id, size() - 1);
  }
  const std::string_view text = table_.text(id);
  switch (types_[id]) {
    case TokenType::byte:
      return std::string(1, static_cast<char>(byte_value(text)));
    case TokenType::control:
    case TokenType::unknown:
      return std::string(show_special ? text : std::string_view());
    default:
      return std::string(text);
  }
}

// The work of one encode() call.
class GemmaTokenizer::Encoder {
 public:
  // `text` must be valid and canonical.
  Encoder(const GemmaTokenizer& tokenizer, std::string_view text) : t_(tokenizer), text_(text) {
    out_.reserve(text.size() / 4 + 8);
    if (text.size() >= kCacheFrom) {
      cache_.resize(std::clamp<size_t>(std::bit_ceil(text.size() / 16), 64, kCacheMost));
    }
  }

  std::vector<Token> run(bool parse_special) {
    const SpecialMatcher& specials = t_.specials_;
    size_t begin = 0;  // of the chunk that is open
    for (size_t at = 0; at < text_.size();) {
      const char byte = text_[at];
      if (specials.may_start(byte)) {
        const auto match = specials.longest(text_.substr(at), parse_special);
        if (match.id >= 0) {
          if (begin < at) chunk(begin, at);
          out_.push_back(match.id);
          begin = at += match.length;
          continue;
        }
      }
      if (begin < at && !t_.joins_[static_cast<uint8_t>(text_[at - 1]) << 8 | static_cast<uint8_t>(byte)]) {
        chunk(begin, at);
        begin = at;
      }
      ++at;
    }
    if (begin < text_.size()) chunk(begin, text_.size());
    return std::move(out_);
  }

 private:
  // A chunk seen before: where it stood in the text and which part of the output it became.
  struct Seen {
    uint32_t begin = 0, length = 0, out = 0, tokens = 0;
  };
  static constexpr size_t kCacheFrom = 256, kCacheMost = 1 << 14, kLongestCached = 64;

  void chunk(size_t begin, size_t end) {
    const std::string_view bytes = text_.substr(begin, end - begin);
    if (bytes.size() == 1 && t_.ascii_[static_cast<uint8_t>(bytes[0])] >= 0) {
      out_.push_back(t_.ascii_[static_cast<uint8_t>(bytes[0])]);
      return;
    }
    if (cache_.empty() || bytes.size() > kLongestCached) return merge(bytes);
    Seen& seen = cache_[hash_bytes(bytes.data(), bytes.size()) & (cache_.size() - 1)];
    if (text_.substr(seen.begin, seen.length) == bytes) {
      for (uint32_t i = 0; i < seen.tokens; ++i) {
        const Token token = out_[seen.out + i];
        out_.push_back(token);
      }
      return;
    }
    const auto from = static_cast<uint32_t>(out_.size());
    merge(bytes);
    seen = {static_cast<uint32_t>(begin), static_cast<uint32_t>(bytes.size()), from,
            static_cast<uint32_t>(out_.size()) - from};
  }

  void merge(std::string_view bytes) {
    const bool bpe = t_.kind_ == TokenizerKind::kBpe;
    if (bpe && bytes[0] == '\n') {  // a run of newlines
      const Token whole = t_.table_.find(bytes);
      if (whole >= 0) return out_.push_back(whole);
    }
    split(bytes);
    if (bpe) {
      merge_symbols(scratch_,
                    [this](const Symbol& a, const Symbol& b) { return t_.merges_.find(a.id, b.id); });
    } else {
      merge_symbols(scratch_, [this, bytes](const Symbol& a, const Symbol& b) -> Merge {
        const Token id = t_.table_.find(bytes.substr(a.begin, b.end - a.begin));
        return id < 0 ? Merge{} : Merge{t_.priorities_[id], id};
      });
    }
    for (const Symbol& symbol : scratch_.symbols) {
      if (symbol.id >= 0) {
        out_.push_back(symbol.id);
      } else {
        fall_back(bytes.substr(symbol.begin, symbol.end - symbol.begin));
      }
    }
  }

  // One symbol a character.
  void split(std::string_view bytes) {
    std::vector<Symbol>& symbols = scratch_.symbols;
    symbols.clear();
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = utf8_length(bytes[at]);
      Token id =
          length == 1 ? t_.ascii_[static_cast<uint8_t>(bytes[at])] : t_.table_.find(bytes.substr(at, length));
      if (id >= 0 && t_.types_[id] != TokenType::normal && t_.types_[id] != TokenType::user_defined) id = -1;
      symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + length), id, {}});
      at += length;
    }
  }

  // A character that is no token: its bytes, or the unknown token when the vocabulary lacks one of them.
  void fall_back(std::string_view character) {
    const auto token = [this](char c) { return t_.bytes_[static_cast<uint8_t>(c)]; };
    if (std::any_of(character.begin(), character.end(), [&](char c) { return token(c) < 0; })) {
      out_.push_back(t_.unk_);
    } else {
      for (const char c : character) out_.push_back(token(c));
    }
  }

  const GemmaTokenizer& t_;
  std::string_view text_;
  std::vector<Token> out_;
  std::vector<Seen> cache_;
  MergeScratch scratch_;
};

std::vector<Token> GemmaTokenizer::encode(std::string_view text, bool parse_special) const {
  const size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    fail(ErrorCode::kUsage,
         "the text is not valid UTF-8: byte 0x{:02X} at offset {} is not part of a character",
         static_cast<uint8_t>(text[invalid]), invalid);
  }
  if (text.size() > std::numeric_limits<uint32_t>::max()) {
    fail(ErrorCode::kUsage, "the text has {} bytes; the limit is 4 GiB", text.size());
  }
  if (text.find(kSpaceMark) == std::string_view::npos) return Encoder(*this, text).run(parse_special);
  std::string canonical;
  canonical.reserve(text.size());
  append_canonical(canonical, text);
  return Encoder(*this, canonical).run(parse_special);
}

}  // namespace kvasir::text
