#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kvasir::text {
namespace {

// Moves whole characters from the front of `held` to the result; bytes that cannot become a character turn
// into U+FFFD.
std::string take(std::string& held, bool last) {
  std::string out;
  size_t at = 0;
  while (at < held.size()) {
    const auto [status, length] = utf8_unit(held, at);
    if (status == Utf8Status::kIncomplete && !last) break;
    if (status == Utf8Status::kComplete) {
      out.append(held, at, length);
    } else {
      out += kReplacement;
    }
    at += length;
  }
  held.erase(0, at);
  return out;
}

}  // namespace

std::string StreamDecoder::push(Token id) {
  held_ += tokenizer_->piece(id, show_special_);
  return take(held_, false);
}

std::string StreamDecoder::finish() { return take(held_, true); }

}  // namespace kvasir::text
