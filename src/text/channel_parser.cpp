#include <algorithm>

#include "text/chat_template.h"

namespace kvasir::text {
namespace {

constexpr std::string_view kOpen = "<|channel>", kClose = "<channel|>", kName = "thought";

// Bytes at the end of `text` that may be the start of `mark`.
size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

void add(std::vector<ChannelParser::Piece>& pieces, bool thought, std::string_view text) {
  if (text.empty()) return;
  if (!pieces.empty() && pieces.back().thought == thought) {
    pieces.back().text += text;
  } else {
    pieces.push_back({thought, std::string(text)});
  }
}

std::string_view without_last_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

}  // namespace

std::vector<ChannelParser::Piece> ChannelParser::push(std::string_view text) {
  pending_ += text;
  return drain(false);
}

std::vector<ChannelParser::Piece> ChannelParser::finish() {
  std::vector<Piece> pieces = drain(true);
  in_thought_ = name_due_ = false;
  return pieces;
}

// Drops the channel's name from the front of what is pending; false while more text is needed to tell. A
// channel without a name is tolerated: what follows its mark is the thought.
bool ChannelParser::skip_name(bool last) {
  const std::string_view text = pending_;
  const std::string_view rest = text.substr(std::min(kName.size(), text.size()));
  const bool named = text.starts_with(kName);
  const auto unfinished = [](std::string_view mark, std::string_view start) {
    return start.size() < mark.size() && mark.starts_with(start);
  };
  if (!last && (unfinished(kName, text) || (named && (unfinished(kOpen, rest) || unfinished(kClose, rest)))))
    return false;
  size_t drop = 0;
  if (named && (rest.empty() || rest.starts_with(kClose) || rest.starts_with(kOpen))) drop = kName.size();
  if (named && rest.starts_with('\n')) drop = kName.size() + 1;
  pending_.erase(0, drop);
  name_due_ = false;
  return true;
}

std::vector<ChannelParser::Piece> ChannelParser::drain(bool last) {
  std::vector<Piece> pieces;
  for (;;) {
    if (name_due_ && !skip_name(last)) return pieces;
    const std::string_view text = pending_;
    const size_t open = text.find(kOpen), close = text.find(kClose), mark = std::min(open, close);
    if (mark != std::string_view::npos) {
      const std::string_view before = text.substr(0, mark);
      add(pieces, in_thought_, in_thought_ ? without_last_newlines(before) : before);
      in_thought_ = name_due_ = open < close;
      pending_.erase(0, mark + (open < close ? kOpen.size() : kClose.size()));
      continue;
    }
    size_t ready = text.size();
    if (!last) ready -= std::max(partial_mark(text, kOpen), partial_mark(text, kClose));
    // Newlines wait for what follows: at the end of a thought they are dropped.
    if (in_thought_) ready = without_last_newlines(text.substr(0, ready)).size();
    add(pieces, in_thought_, text.substr(0, ready));
    pending_.erase(0, last ? text.size() : ready);
    return pieces;
  }
}

}  // namespace kvasir::text
