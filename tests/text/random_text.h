// Random valid UTF-8 that is likely to hit special tokens, runs, joins and byte fallback.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::text {

inline void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

inline std::string random_text(std::mt19937& random, const std::vector<std::string>& snippets) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::string out;
  const uint32_t parts = below(24);
  for (uint32_t part = 0; part < parts; ++part) {
    switch (below(9)) {
      case 0:
        out.append(1 + below(40), ' ');
        break;
      case 1:
        out.append(1 + below(40), '\n');
        break;
      case 2:
        for (uint32_t n = below(12); n > 0; --n) append_utf8(out, below(128));
        break;
      case 3:
        for (uint32_t n = below(6); n > 0; --n) append_utf8(out, 0x80 + below(0x780));
        break;
      case 4:
        for (uint32_t n = below(6); n > 0; --n) append_utf8(out, 0x3040 + below(0x6000));
        break;
      case 5:
        append_utf8(out, below(2) ? 0x1F300 + below(0x700) : 0x10000 + below(0x100000));
        break;
      case 6:
        for (uint32_t n = 1 + below(3); n > 0; --n) append_utf8(out, 0x2581);
        break;
      case 7:
        for (uint32_t n = below(60); n > 0; --n) out += "aeiostnrhl "[below(11)];
        break;
      default:
        out += snippets[below(static_cast<uint32_t>(snippets.size()))];
    }
  }
  return out;
}

}  // namespace kvasir::text
