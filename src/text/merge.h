// Byte-pair merging: repeatedly joins the adjacent pair of symbols that has the best priority, leftmost first
// on a tie, until no pair can be joined. O(n log n) for n symbols.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir::text {

inline constexpr uint32_t kNoMerge = UINT32_MAX;

struct Merge {
  uint32_t priority = kNoMerge;  // lower is joined first
  Token id = -1;                 // of the joined symbol
};

struct Symbol {
  uint32_t begin, end;  // bytes of the chunk
  Token id;             // -1: not a token
  Merge merge;          // with the symbol that follows
};

// Buffers kept from one chunk to the next.
struct MergeScratch {
  struct Link {
    uint32_t previous, next;
  };
  std::vector<Symbol> symbols;
  std::vector<Link> links;
  std::vector<uint64_t> heap;
};

// `rules(left, right)` gives the Merge of two adjacent symbols.
template <class Rules>
void merge_few(std::vector<Symbol>& symbols, const Rules& rules) {
  // Moving a few symbols down and scanning for the minimum beats a heap: chunks are words.
  size_t count = symbols.size();
  for (;;) {
    size_t best = 0;
    uint32_t priority = kNoMerge;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (symbols[i].merge.priority < priority) {
        priority = symbols[i].merge.priority;
        best = i;
      }
    }
    if (priority == kNoMerge) break;
    Symbol& joined = symbols[best];
    joined.id = joined.merge.id;
    joined.end = symbols[best + 1].end;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    --count;
    joined.merge = best + 1 < count ? rules(joined, symbols[best + 1]) : Merge{};
    if (best > 0) symbols[best - 1].merge = rules(symbols[best - 1], joined);
  }
  symbols.resize(count);
}

template <class Rules>
void merge_many(MergeScratch& scratch, const Rules& rules) {
  auto& [symbols, links, heap] = scratch;
  constexpr uint32_t kNone = UINT32_MAX;
  const auto count = static_cast<uint32_t>(symbols.size());
  links.resize(count);
  heap.clear();
  // Priority above position: the smallest entry is the best pair, and of equal pairs the leftmost.
  const auto entry = [&](uint32_t i) { return static_cast<uint64_t>(symbols[i].merge.priority) << 32 | i; };
  for (uint32_t i = 0; i < count; ++i) {
    links[i] = {i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
    if (symbols[i].merge.priority != kNoMerge) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t i) {
    const uint32_t next = links[i].next;
    symbols[i].merge = next == kNone ? Merge{} : rules(symbols[i], symbols[next]);
    if (symbols[i].merge.priority == kNoMerge) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    // An entry is stale when its symbol was absorbed or has another neighbour by now; a pair that still has
    // the entry's priority is the best one whether or not it is the pair the entry was made for.
    if (symbols[at].merge.priority != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t absorbed = links[at].next, next = links[absorbed].next;
    symbols[at].id = symbols[at].merge.id;
    symbols[at].end = symbols[absorbed].end;
    symbols[absorbed].merge = Merge{};
    links[at].next = next;
    if (next != kNone) links[next].previous = at;
    update(at);
    if (links[at].previous != kNone) update(links[at].previous);
  }
  uint32_t kept = 0;
  for (uint32_t i = 0; i != kNone; i = links[i].next) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

// Joins the symbols in `scratch.symbols`, whose `merge` fields need not be set.
template <class Rules>
void merge_symbols(MergeScratch& scratch, const Rules& rules) {
  constexpr size_t kFew = 40;
  std::vector<Symbol>& symbols = scratch.symbols;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) symbols[i].merge = rules(symbols[i], symbols[i + 1]);
  if (!symbols.empty()) symbols.back().merge = Merge{};
  if (symbols.size() <= kFew) {
    merge_few(symbols, rules);
  } else {
    merge_many(scratch, rules);
  }
}

}  // namespace kvasir::text
