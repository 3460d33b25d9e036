// The tokenizers as their definitions read, quadratic and with maps of strings, to compare the fast ones
// with.
#pragma once
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::text {

class NaiveTokenizer {
 public:
  explicit NaiveTokenizer(const Vocabulary& v) : v_(v) {
    for (size_t i = 0; i < v.tokens.size(); ++i) {
      const std::string text = escape(std::string(v.tokens[i]));
      const TokenType type = v.types[i];
      if (type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined) {
        special_[text] = static_cast<Token>(i);
        longest_ = std::max(longest_, text.size());
      }
      if (type == TokenType::normal || type == TokenType::user_defined)
        ids_.emplace(text, static_cast<Token>(i));
      if (type == TokenType::byte) bytes_.emplace(text, static_cast<Token>(i));
    }
    for (size_t i = 0; i < v.merges.size(); ++i) {
      const size_t space = v.merges[i].find(' ', 1);
      ranks_.emplace(
          std::pair(std::string(v.merges[i].substr(0, space)), std::string(v.merges[i].substr(space + 1))),
          i);
    }
  }

  std::vector<Token> encode(std::string_view raw, bool parse_special) const {
    const std::string text = escape(std::string(raw));
    std::vector<Token> out;
    std::string fragment;
    for (size_t at = 0; at < text.size();) {
      const auto [id, length] = special_at(text, at, parse_special);
      if (id < 0) {
        fragment += text[at++];
        continue;
      }
      encode_fragment(fragment, out);
      fragment.clear();
      out.push_back(id);
      at += length;
    }
    encode_fragment(fragment, out);
    return out;
  }

 private:
  static std::string escape(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == ' ' ? std::string("\u2581") : std::string(1, c);
    return out;
  }

  std::pair<Token, size_t> special_at(const std::string& text, size_t at, bool parse_special) const {
    for (size_t length = std::min(longest_, text.size() - at); length > 0; --length) {
      const auto it = special_.find(text.substr(at, length));
      if (it == special_.end()) continue;
      if (parse_special || v_.types[it->second] == TokenType::user_defined) return {it->second, length};
    }
    return {-1, 0};
  }

  void encode_fragment(const std::string& text, std::vector<Token>& out) const {
    if (v_.kind == TokenizerKind::kSpm) return encode_run(text, out);
    for (size_t begin = 0; begin < text.size();) {
      const bool newline = text[begin] == '\n';
      size_t end = begin;
      while (end < text.size() && (text[end] == '\n') == newline) ++end;
      const std::string run = text.substr(begin, end - begin);
      if (newline && ids_.contains(run)) {
        out.push_back(ids_.at(run));
      } else {
        encode_run(run, out);
      }
      begin = end;
    }
  }

  // Smaller is better; -inf-like "none" is a large value.
  double cost(const std::string& left, const std::string& right) const {
    if (v_.kind == TokenizerKind::kBpe) {
      const auto it = ranks_.find({left, right});
      return it == ranks_.end() ? kNone : static_cast<double>(it->second);
    }
    const auto it = ids_.find(left + right);
    return it == ids_.end() ? kNone : -static_cast<double>(v_.scores[it->second]);
  }

  void encode_run(const std::string& text, std::vector<Token>& out) const {
    std::vector<std::string> symbols;
    for (const char c : text) {
      if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) {
        symbols.back() += c;
      } else {
        symbols.emplace_back(1, c);
      }
    }
    for (;;) {
      size_t best = 0;
      double best_cost = kNone;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const double c = cost(symbols[i], symbols[i + 1]);
        if (c < best_cost) best_cost = c, best = i;
      }
      if (best_cost == kNone) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    for (const std::string& symbol : symbols) {
      const auto it = ids_.find(symbol);
      if (it != ids_.end()) {
        out.push_back(it->second);
        continue;
      }
      for (const char c : symbol) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned char>(c));
        out.push_back(bytes_.at(name));
      }
    }
  }

  static constexpr double kNone = 1e300;
  const Vocabulary& v_;
  std::unordered_map<std::string, Token> ids_, special_, bytes_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
  size_t longest_ = 0;
};

}  // namespace kvasir::text
