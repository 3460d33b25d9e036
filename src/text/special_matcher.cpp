#include "text/special_matcher.h"

#include <algorithm>

namespace kvasir::text {

SpecialMatcher::SpecialMatcher(std::vector<Entry> entries) {
  std::erase_if(entries, [](const Entry& e) { return e.text.empty(); });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& entry : entries) starts_[static_cast<uint8_t>(entry.text[0])] = 1;

  // Breadth first over ranges of the sorted list that share a prefix: the children of a node end up next to
  // each other.
  struct Range {
    size_t first, last;  // of entries
    size_t depth;        // bytes they share
  };
  nodes_.push_back({});
  std::vector<Range> ranges{{0, entries.size(), 0}};
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [first, last, depth] = ranges[node];
    if (first < last && entries[first].text.size() == depth) {  // the shorter of equal prefixes sorts first
      nodes_[node].id = entries[first].id;
      nodes_[node].control = entries[first].control;
      while (first < last && entries[first].text.size() == depth) ++first;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (first < last) {
      const char byte = entries[first].text[depth];
      size_t end = first + 1;
      while (end < last && entries[end].text[depth] == byte) ++end;
      nodes_.push_back({.byte = static_cast<uint8_t>(byte)});
      ranges.push_back({first, end, depth + 1});
      ++nodes_[node].children;
      first = end;
    }
  }
}

SpecialMatcher::Match SpecialMatcher::longest(std::string_view text, bool with_control) const {
  Match best;
  const Node* node = nodes_.data();
  for (size_t length = 0; node != nullptr;) {
    if (node->id >= 0 && length > 0 && (with_control || !node->control)) best = {node->id, length};
    if (length == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[length++]);
    const Node* child = nodes_.data() + node->first_child;
    const Node* end = child + node->children;
    while (child != end && child->byte < byte) ++child;
    node = child != end && child->byte == byte ? child : nullptr;
  }
  return best;
}

}  // namespace kvasir::text
