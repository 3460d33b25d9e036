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

class MergeBatch {
 public:
  MergeBatch(std::span<const std::string_view> merges, const TokenTable& tokens)
      : merges_(merges), tokens_(tokens) {}

  // Starts the look-ups of merges [from, from + count).
  void start(size_t from, size_t count) {
    from_ = from;
    buffer_.clear();
    for (size_t i = 0; i < count; ++i) {
      const std::string_view merge = merges_[from + i];
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size()) {
        fail(ErrorCode::kBadFile, "vocabulary: merge {} is {}; expected two tokens with a space between them",
             from + i, quote(merge));
      }
      const size_t begin = buffer_.size();
      append_canonical(buffer_, merge.substr(0, space));
      const size_t middle = buffer_.size();
      append_canonical(buffer_, merge.substr(space + 1));
      look_up(parts_[i * 3], begin, middle);
      look_up(parts_[i * 3 + 1], middle, buffer_.size());
      look_up(parts_[i * 3 + 2], begin, buffer_.size());
    }
    for (size_t i = 0; i < count * 3; ++i)
      tokens_.prefetch_place(parts_[i].likely = tokens_.likely(parts_[i].hash));
    for (size_t i = 0; i < count * 3; ++i) tokens_.prefetch_text(parts_[i].likely);
  }

  Token left(size_t i) const { return require(i, parts_[i * 3]); }
  Token right(size_t i) const { return require(i, parts_[i * 3 + 1]); }
  Token joined(size_t i) const { return require(i, parts_[i * 3 + 2]); }

 private:
  struct Part {
    size_t begin, end;  // in the buffer
    uint64_t hash;
    Token likely;
  };
  void look_up(Part& part, size_t begin, size_t end) {
    part = {begin, end, hash_bytes(buffer_.data() + begin, end - begin), -1};
    tokens_.prefetch(part.hash);
  }
  Token require(size_t i, const Part& part) const {
    const std::string_view text = std::string_view(buffer_).substr(part.begin, part.end - part.begin);
    const Token id = tokens_.confirm(part.likely, text, part.hash);
    if (id >= 0) return id;
    fail(ErrorCode::kBadFile, "vocabulary: merge {} ({}) needs {}, which is not a token", from_ + i,
         quote(merges_[from_ + i]), quote(text));
  }

  std::span<const std::string_view> merges_;
  const TokenTable& tokens_;
  size_t from_ = 0;
  std::string buffer_;  // canonical texts of the batch
  Part parts_[kBatch * 3];
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
    batch.start(from, count);
    for (size_t i = 0; i < count; ++i) {
      keys[i] = key_of(batch.left(i), batch.right(i));
      joined[i] = batch.joined(i);
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
