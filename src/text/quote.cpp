#include "text/quote.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace kvasir::text {

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string out = "'";
  size_t at = 0;
  while (at < text.size() && at < kLongest) {
    const auto [status, length] = utf8_unit(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (status != Utf8Status::kComplete || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out + (at < text.size() ? "...'" : "'");
}

}  // namespace kvasir::text
