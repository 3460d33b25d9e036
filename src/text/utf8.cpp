#include "text/utf8.h"

#include <cstring>

namespace kvasir::text {
namespace {

struct Lead {
  uint8_t length;     // 0: never starts a character
  uint8_t low, high;  // allowed range of the second byte
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit utf8_unit(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[at]));
  if (lead.length == 0) return {Utf8Status::kInvalid, 1};
  uint8_t low = lead.low, high = lead.high;
  for (uint8_t seen = 1; seen < lead.length; ++seen) {
    if (at + seen >= text.size()) return {Utf8Status::kIncomplete, seen};
    const auto byte = static_cast<uint8_t>(text[at + seen]);
    if (byte < low || byte > high) return {Utf8Status::kInvalid, seen};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Status::kComplete, lead.length};
}

size_t find_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if (word & kHighBits) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const Utf8Unit unit = utf8_unit(text, at);
    if (unit.status != Utf8Status::kComplete) return at;
    at += unit.length;
  }
  return std::string_view::npos;
}

}  // namespace kvasir::text
