// The 12 bytes in which q4_k and q5_k keep eight 6-bit scales S and eight 6-bit minima M: bytes 0..3 hold
// S0..S3 and bytes 4..7 hold M0..M3 in their low 6 bits; bytes 8..11 hold the low nibbles of S4..S7 and
// M4..M7, whose upper two bits fill the tops of bytes 0..3 and 4..7.
#pragma once
#include <cstdint>

namespace kvasir::formats {

struct ScaleAndMin {
  int scale, min;
};

constexpr ScaleAndMin unpack_scale_min(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4), (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)};
}

// scale and min: 8 values in 0..63.
constexpr void pack_scales_mins(const int* scale, const int* min, uint8_t* packed) {
  for (int j = 0; j < 4; ++j) {
    packed[j] = uint8_t(scale[j] | ((scale[j + 4] >> 4) << 6));
    packed[j + 4] = uint8_t(min[j] | ((min[j + 4] >> 4) << 6));
    packed[j + 8] = uint8_t((scale[j + 4] & 15) | ((min[j + 4] & 15) << 4));
  }
}

}  // namespace kvasir::formats
