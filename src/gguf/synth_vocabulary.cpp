#include "gguf/synth_vocabulary.h"

#include <fmt/format.h>

#include <span>

namespace kvasir::gguf {
namespace {

constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;
constexpr size_t kFirstNewlines = 107, kFirstTag = 168, kFirstByte = 238;
constexpr int kLongestRun = 31;
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581
constexpr std::string_view kLetters =
    "etaoinshrdlcumwfgypbvkjxqz";  // frequent ones first, so that pieces look like text

struct Special {
  size_t id;
  std::string_view text;
  int type;
};

constexpr Special kGemma3[] = {{105, "<start_of_turn>", kControl}, {106, "<end_of_turn>", kControl}};
constexpr Special kGemma4[] = {{46, "<|tool>", kControl},          {47, "<tool|>", kControl},
                               {50, "<|tool_response>", kControl}, {98, "<|think|>", kControl},
                               {105, "<|turn>", kControl},         {106, "<turn|>", kControl}};

class Builder {
 public:
  explicit Builder(const Geometry& geometry)
      : bpe_(geometry.gemma4()),
        n_vocab_(size_t(geometry.n_vocab)),
        run_type_(bpe_ ? kNormal : kUserDefined) {}

  SynthVocabulary build() {
    specials();
    runs();
    tags();
    for (int byte = 0; byte < 256; ++byte) put(fmt::format("<0x{:02X}>", byte), kByte);
    put(std::string(kSpace), kNormal);
    for (char c = '!'; c <= '~'; ++c) put(std::string(1, c), kNormal);
    pieces();
    return std::move(out_);
  }

 private:
  void put(std::string text, int type) {
    if (out_.tokens.size() == n_vocab_) return;
    // Gemma 3 merges by score, the earliest token best; Gemma 4 by merge rank, its scores mean nothing.
    out_.scores.push_back(bpe_ ? -1000.0f : type == kNormal ? -float(out_.tokens.size()) : 0.0f);
    out_.tokens.push_back(std::move(text));
    out_.types.push_back(type);
  }

  void merge(std::string_view left, std::string_view right) {
    if (bpe_ && out_.tokens.size() < n_vocab_) out_.merges.push_back(fmt::format("{} {}", left, right));
  }

  void specials() {
    put("<pad>", kControl);
    put("<eos>", kControl);
    put("<bos>", kControl);
    put("<unk>", kUnknown);
    put("<mask>", bpe_ ? kControl : kUserDefined);
    const auto named = [&](std::span<const Special> list) -> const Special* {
      for (const Special& special : list)
        if (special.id == out_.tokens.size()) return &special;
      return nullptr;
    };
    while (out_.tokens.size() < kFirstNewlines) {
      const Special* special = bpe_ ? named(kGemma4) : named(kGemma3);
      if (special) {
        put(std::string(special->text), special->type);
      } else {
        put(fmt::format("<unused{}>", out_.tokens.size()), kControl);
      }
    }
  }

  // "\n" to 31 of them, then 2 to 31 spaces.
  void runs() {
    for (int n = 1; n <= kLongestRun; ++n) {
      if (n > 1) merge(std::string(size_t(n) - 1, '\n'), "\n");
      put(std::string(size_t(n), '\n'), run_type_);
    }
    std::string spaces(bpe_ ? kSpace : " ");
    const std::string one = spaces;
    for (int n = 2; n <= kLongestRun; ++n) {
      merge(spaces, one);
      spaces += one;
      put(spaces, run_type_);
    }
  }

  void tags() {
    while (out_.tokens.size() < kFirstByte) {
      const size_t id = out_.tokens.size();
      put(id == 200 ? "<b>" : id == 212 ? "</s>" : fmt::format("<tag{}>", id - kFirstTag), kUserDefined);
    }
  }

  // Every string over the letters, with and without a space in front, shortest first, until the vocabulary is
  // full.
  void pieces() {
    std::vector<std::string> stems{std::string(kSpace)};
    for (char c : kLetters) stems.emplace_back(1, c);
    for (size_t i = 0; out_.tokens.size() < n_vocab_; ++i) {
      for (char c : kLetters) {
        const std::string stem = stems[i];
        merge(stem, std::string_view(&c, 1));
        put(stem + c, kNormal);
        stems.push_back(stem + c);
      }
    }
  }

  const bool bpe_;
  const size_t n_vocab_;
  const int run_type_;
  SynthVocabulary out_;
};

}  // namespace

SynthVocabulary synth_vocabulary(const Geometry& geometry) { return Builder(geometry).build(); }

}  // namespace kvasir::gguf
