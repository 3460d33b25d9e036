// The 16 levels of iq4_nl and iq4_xs.
#pragma once
#include <array>
#include <cstdint>

#include "formats/search.h"

namespace kvasir::formats {

constexpr std::array<int8_t, 16> kIq4Levels = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

constexpr Grid kIq4Grid{-127, 113, kIq4Levels.data()};
constexpr Trials kIq4Trials{-24, 2.5f, 1};

// Code of a level of the list.
constexpr uint8_t iq4_code(float level) {
  uint8_t code = 0;
  while (float(kIq4Levels[code]) != level && code < 15) ++code;
  return code;
}

}  // namespace kvasir::formats
