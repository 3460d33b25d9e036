// Finds control and user-defined tokens in a text: of those that start at a position, the longest. A byte
// trie, so a position costs its longest match and not the number of tokens.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::text {

class SpecialMatcher {
 public:
  struct Entry {
    std::string_view text;
    Token id;
    bool control;  // matched only when special parsing is on
  };
  struct Match {
    Token id = -1;  // -1: none
    size_t length = 0;
  };

  SpecialMatcher() = default;
  // Of entries with equal text the first is used. The texts are not needed afterwards.
  explicit SpecialMatcher(std::vector<Entry> entries);

  bool may_start(char byte) const { return starts_[static_cast<uint8_t>(byte)] != 0; }
  Match longest(std::string_view text, bool with_control) const;

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t byte = 0;  // on the edge that leads here
    bool control = false;
    Token id = -1;
  };
  std::array<uint8_t, 256> starts_{};
  std::vector<Node> nodes_;
};

}  // namespace kvasir::text
