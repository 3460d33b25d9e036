#include "text/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "text/utf8.h"

namespace kvasir::text {
namespace {

uint64_t load64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

uint64_t load32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// High and low half of the 128-bit product, folded: every input bit reaches every output bit.
uint64_t fold_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kSeed = 0x2545F4914F6CDD1D, kStep = 0xD1342543DE82EF95, kLast = 0x9FB21C651E98DF25;

}  // namespace

void append_canonical(std::string& out, std::string_view text) {
  size_t from = 0;
  for (size_t mark; (mark = text.find(kSpaceMark, from)) != std::string_view::npos;
       from = mark + kSpaceMark.size()) {
    out.append(text, from, mark - from);
    out.push_back(' ');
  }
  out.append(text, from);
}

uint64_t hash_bytes(const char* data, size_t size) {
  uint64_t a, b, state = kSeed ^ size;
  if (size >= 8) {
    for (size_t at = 0; at + 16 < size; at += 8) state = fold_product(state ^ load64(data + at), kStep);
    a = size > 16 ? load64(data + size - 16) : load64(data);
    b = load64(data + size - 8);
  } else if (size >= 4) {
    a = load32(data);
    b = load32(data + size - 4);
  } else {
    a = static_cast<uint8_t>(data[0]);
    b = static_cast<uint64_t>(static_cast<uint8_t>(data[size / 2])) << 8 |
        static_cast<uint8_t>(data[size - 1]);
  }
  return fold_product(fold_product(a ^ state, kStep) ^ b, kLast);
}

TokenTable::TokenTable(std::span<const std::string_view> texts, std::span<const uint8_t> mergeable) {
  size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    fail(ErrorCode::kBadFile, "vocabulary: the token texts take {} bytes; the limit is 4 GiB", bytes);
  }
  arena_.reserve(bytes);
  offsets_.reserve(texts.size() + 1);
  offsets_.push_back(0);
  for (const std::string_view text : texts) {
    append_canonical(arena_, text);
    longest_ = std::max(longest_, arena_.size() - offsets_.back());
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
  }
  const size_t capacity = std::bit_ceil(std::max<size_t>(texts.size() * 2, 16));
  shift_ = 64 - std::countr_zero(capacity);
  slots_.assign(capacity, Slot{0, 0});
  // Two passes, so that a control token can never hide a token that encoding may produce; hashes are computed
  // a batch ahead, so that the table's cache misses overlap.
  constexpr int kBatch = 16;
  for (const bool wanted : {true, false}) {
    uint64_t hashes[kBatch];
    for (int from = 0; from < size(); from += kBatch) {
      const int count = std::min(kBatch, size() - from);
      for (int i = 0; i < count; ++i) {
        const std::string_view token = text(from + i);
        if (token.empty() || (mergeable[from + i] != 0) != wanted) continue;
        hashes[i] = hash_bytes(token.data(), token.size());
        prefetch(hashes[i]);
      }
      for (int i = 0; i < count; ++i) {
        if (!text(from + i).empty() && (mergeable[from + i] != 0) == wanted) insert(from + i, hashes[i]);
      }
    }
  }
}

void TokenTable::insert(Token id, uint64_t hash) {
  const auto tag = static_cast<uint32_t>(hash);
  for (size_t slot = hash >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].id_plus_one == 0) {
      slots_[slot] = {tag, static_cast<uint32_t>(id) + 1};
      return;
    }
    if (slots_[slot].tag == tag && text(static_cast<Token>(slots_[slot].id_plus_one - 1)) == text(id)) return;
  }
}

Token TokenTable::find(std::string_view wanted, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash);
  for (size_t slot = hash >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].id_plus_one == 0) return -1;
    const auto id = static_cast<Token>(slots_[slot].id_plus_one - 1);
    if (slots_[slot].tag == tag && text(id) == wanted) return id;
  }
}

}  // namespace kvasir::text
