#include "text/merge_table.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "text/quote.h"

namespace kvasir::text {
namespace {

// Half a million merges need three look-ups and an insertion each, all cache misses: a batch starts its
// memory accesses together before it uses any.
constexpr size_t kBatch = 32;

struct Pending {
  size_t begin, middle, end;  // of the halves in the batch's text buffer
  uint64_t left_hash, right_hash, joined_hash;
};

class MergeBatch {
 public:
  MergeBatch(std::span<const std::string_view> merges, const TokenTable& tokens)
      : merges_(merges), tokens_(tokens) {}

  // Canonical texts and hashes of merges [from, from + count).
  void hash(size_t from, size_t count) {
    buffer_.clear();
    for (size_t i = 0; i < count; ++i) {
      const std::string_view merge = merges_[from + i];
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size()) {
        fail(ErrorCode::kBadFile, "vocabulary: merge {} is {}; expected two tokens with a space between them",
             from + i, quote(merge));
      }
      Pending& p = pending_[i];
      p.begin = buffer_.size();
      append_canonical(buffer_, merge.substr(0, space));
      p.middle = buffer_.size();
      append_canonical(buffer_, merge.substr(space + 1));
      p.end = buffer_.size();
      p.left_hash = hash_part(p.begin, p.middle);
      p.right_hash = hash_part(p.middle, p.end);
      p.joined_hash = hash_part(p.begin, p.end);
    }
  }

  struct Resolved {
    Token left, right, joined;
  };
  Resolved resolve(size_t index, size_t i) {
    const Pending& p = pending_[i];
    const Token left = require(index, p.begin, p.middle, p.left_hash);
    const Token right = require(index, p.middle, p.end, p.right_hash);
    // The splits of one token usually follow each other.
    const std::string_view joined = part(p.begin, p.end);
    if (last_joined_ < 0 || tokens_.text(last_joined_) != joined) {
      last_joined_ = require(index, p.begin, p.end, p.joined_hash);
    }
    return {left, right, last_joined_};
  }

 private:
  std::string_view part(size_t begin, size_t end) const {
    return std::string_view(buffer_).substr(begin, end - begin);
  }
  uint64_t hash_part(size_t begin, size_t end) const {
    const uint64_t hash = hash_bytes(buffer_.data() + begin, end - begin);
    tokens_.prefetch(hash);
    return hash;
  }
  Token require(size_t index, size_t begin, size_t end, uint64_t hash) const {
    const Token id = tokens_.find(part(begin, end), hash);
    if (id >= 0) return id;
    fail(ErrorCode::kBadFile, "vocabulary: merge {} ({}) needs {}, which is not a token", index,
         quote(merges_[index]), quote(part(begin, end)));
  }

  std::span<const std::string_view> merges_;
  const TokenTable& tokens_;
  std::string buffer_;
  Pending pending_[kBatch];
  Token last_joined_ = -1;
};

}  // namespace

MergeTable::MergeTable(std::span<const std::string_view> merges, const TokenTable& tokens) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(merges.size() + merges.size() / 2, 16));
  shift_ = 64 - std::countr_zero(capacity);
  slots_.resize(capacity);
  MergeBatch batch(merges, tokens);
  uint64_t keys[kBatch];
  Token joined[kBatch];
  for (size_t from = 0; from < merges.size(); from += kBatch) {
    const size_t count = std::min(kBatch, merges.size() - from);
    batch.hash(from, count);
    for (size_t i = 0; i < count; ++i) {
      const auto resolved = batch.resolve(from + i, i);
      keys[i] = key_of(resolved.left, resolved.right);
      joined[i] = resolved.joined;
      __builtin_prefetch(&slots_[slot_of(keys[i])], 1);
    }
    for (size_t i = 0; i < count; ++i) insert(keys[i], {static_cast<uint32_t>(from + i), joined[i]});
  }
}

void MergeTable::insert(uint64_t key, Merge merge) {
  for (size_t at = slot_of(key);; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].key == key) return;
    if (slots_[at].key == 0) {
      slots_[at] = {key, merge};
      return;
    }
  }
}

}  // namespace kvasir::text
