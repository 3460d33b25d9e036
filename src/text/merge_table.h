// The merge list of a BPE vocabulary, indexed by the ids of the two halves.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/token_table.h"

namespace kvasir::text {

class MergeTable {
 public:
  MergeTable() = default;
  // Each merge is "left right", split at its first space that is not its first byte; its place in the list is
  // its priority, and of equal merges the first counts. Throws Error{kBadFile} when a half or the joined text
  // is no token.
  MergeTable(std::span<const std::string_view> merges, const TokenTable& tokens);

  Merge find(Token left, Token right) const {
    if (left < 0 || right < 0) return {};
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == 0) return {};
    }
  }

 private:
  struct Slot {
    uint64_t key = 0;  // 0: free
    Merge merge;
  };
  static uint64_t key_of(Token left, Token right) {
    return (static_cast<uint64_t>(left) + 1) << 32 | (static_cast<uint64_t>(right) + 1);
  }
  size_t slot_of(uint64_t key) const {
    key *= 0x9E3779B97F4A7C15;  // Fibonacci hashing; the fold lets the left id reach the low product bits too
    key = (key ^ key >> 32) * 0xD6E8FEB86659FD93;
    return key >> shift_;
  }
  void insert(uint64_t key, Merge merge);

  std::vector<Slot> slots_;
  int shift_ = 0;
};

}  // namespace kvasir::text
