// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvasir::text {

// U+2581, how the Gemma vocabularies write a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status : uint8_t { kComplete, kIncomplete, kInvalid };

struct Utf8Unit {
  Utf8Status status;
  uint8_t length;  // bytes of the character; of the part seen so far; or of the maximal part that one U+FFFD
                   // replaces
};

// The unit that starts at text[at]; `at` < text.size(). kIncomplete: the text ends inside a character that
// may become valid.
Utf8Unit utf8_unit(std::string_view text, size_t at);

// Offset of the first byte that is not part of a whole valid character; npos when there is none.
size_t find_invalid_utf8(std::string_view text);

// Bytes of the character whose first byte is `lead`, in text known to be valid.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace kvasir::text
