// The texts of a vocabulary in one arena with a hash index over them. Texts are canonical: U+2581 is held as
// a space, so a text to encode needs no escaping and every space costs one byte.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::text {

// Appends `text` to `out` with every U+2581 turned into a space.
void append_canonical(std::string& out, std::string_view text);

uint64_t hash_bytes(const char* data, size_t size);

class TokenTable {
 public:
  // Copies the texts. Of tokens with equal text the lowest id is found, and one for which `mergeable` is set
  // before one for which it is not. Empty texts are never found. Throws Error{kBadFile} when the texts exceed
  // 4 GiB.
  TokenTable(std::span<const std::string_view> texts, std::span<const uint8_t> mergeable);

  int size() const { return static_cast<int>(offsets_.size()) - 1; }
  size_t longest() const { return longest_; }
  std::string_view text(Token id) const {
    return {arena_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]};
  }
  std::string_view arena() const { return arena_; }

  // -1 when there is no such token. `text` must be canonical.
  Token find(std::string_view text) const {
    return text.empty() || text.size() > longest_ ? -1 : find(text, hash_bytes(text.data(), text.size()));
  }
  Token find(std::string_view text, uint64_t hash) const;
  // find() in steps, for callers that overlap the cache misses of many look-ups: prefetch(hash); then id =
  // likely(hash) and prefetch_place(id); then prefetch_text(id); then confirm(id, text, hash).
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash >> shift_]); }
  // The token whose hash agrees, its text not compared; -1 when there is none.
  Token likely(uint64_t hash) const {
    for (size_t slot = hash >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot].id_plus_one == 0) return -1;
      if (slots_[slot].tag == static_cast<uint32_t>(hash))
        return static_cast<Token>(slots_[slot].id_plus_one - 1);
    }
  }
  void prefetch_place(Token likely) const {
    if (likely >= 0) __builtin_prefetch(&offsets_[likely]);
  }
  void prefetch_text(Token likely) const {
    if (likely >= 0) __builtin_prefetch(arena_.data() + offsets_[likely]);
  }
  Token confirm(Token likely, std::string_view wanted, uint64_t hash) const {
    return likely < 0 || text(likely) == wanted ? likely : find(wanted, hash);
  }

 private:
  struct Slot {
    uint32_t tag;
    uint32_t id_plus_one;  // 0: free
  };
  void insert(Token id, uint64_t hash);

  std::string arena_;
  std::vector<uint32_t> offsets_;
  std::vector<Slot> slots_;
  int shift_ = 0;
  size_t longest_ = 0;
};

}  // namespace kvasir::text
