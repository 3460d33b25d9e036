// Text a user gives: escapes and the UTF-8 check.
#include "base/error.h"
#include "options.h"
#include "text/utf8.h"

namespace kvasir::app {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void require_utf8(std::string_view text, std::string_view what) {
  const size_t at = text::find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  fail(ErrorCode::kUsage,
       "{}: not UTF-8: byte 0x{:02X} at byte offset {}; convert the text, for example with iconv -t UTF-8",
       what, unsigned(static_cast<unsigned char>(text[at])), at);
}

std::string resolve_escapes(std::string_view text) {
  static constexpr std::string_view kLetters = "nrt\\\"'";
  static constexpr std::string_view kMeanings = "\n\r\t\\\"'";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : 0;
    const size_t letter = next ? kLetters.find(next) : kLetters.npos;
    if (letter != kLetters.npos) {
      out += kMeanings[letter];
      ++i;
    } else if (next == 'x' && i + 3 < text.size() && hex_digit(text[i + 2]) >= 0 &&
               hex_digit(text[i + 3]) >= 0) {
      out += char(hex_digit(text[i + 2]) * 16 + hex_digit(text[i + 3]));
      i += 3;
    } else {
      out += text[i];  // unknown escapes stay as they are
    }
  }
  return out;
}

}  // namespace kvasir::app
