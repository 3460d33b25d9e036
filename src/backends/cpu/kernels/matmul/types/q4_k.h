// q4_k, q5_k: 256 values in 8 blocks of 32; f16 d and dmin, 6-bit scale S and minimum M a block:
// value = d * S * code - dmin * M.
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Unit: d[32] f16, dmin[32] f16, 16 six-bit vectors (S_0, M_0, S_1, ...), 8 x codes.
struct KScales {
  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    const auto d = V::load_f16(unit + 2 * lane), dmin = V::load_f16(unit + 64 + 2 * lane);
    out.scale[0] = V::mul(d, V::from_u8(six_bits<V>(unit + 128, 16, 2 * j, lane)));
    out.min[0] = V::negate(V::mul(dmin, V::from_u8(six_bits<V>(unit + 128, 16, 2 * j + 1, lane))));
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
    copy16(unit + 64 + 2 * row, source + 2);
    const auto* sc = reinterpret_cast<const uint8_t*>(source + 4);
    for (int j = 0; j < 8; ++j) {
      const int scale = j < 4 ? sc[j] & 63 : (sc[j + 4] & 15) | ((sc[j - 4] >> 6) << 4);
      const int min = j < 4 ? sc[j + 4] & 63 : (sc[j + 4] >> 4) | ((sc[j] >> 6) << 4);
      set_six_bits(unit + 128, 16, 2 * j, row, uint8_t(scale));
      set_six_bits(unit + 128, 16, 2 * j + 1, row, uint8_t(min));
    }
  }
};

template <>
struct WeightLayout<DType::q4_k> : QuantisedLayout<8, 144, 4, 0, 512, 0>, KScales {
  static constexpr int kOffset = 0;
  static constexpr bool kMin = true, kHalves = false;

  static void unpack(const std::byte* source, uint8_t* codes) {
    const auto* nibbles = reinterpret_cast<const uint8_t*>(source + 16);
    for (int p = 0; p < 4; ++p, nibbles += 32, codes += 64)
      for (int i = 0; i < 32; ++i) {
        codes[i] = nibbles[i] & 15;
        codes[i + 32] = nibbles[i] >> 4;
      }
  }
};

template <>
struct WeightLayout<DType::q5_k> : QuantisedLayout<8, 176, 4, 1, 512, 0>, KScales {
  static constexpr int kOffset = 0;
  static constexpr bool kMin = true, kHalves = false;

  static void unpack(const std::byte* source, uint8_t* codes) {
    const auto* high = reinterpret_cast<const uint8_t*>(source + 16);
    const auto* nibbles = high + 32;
    for (int p = 0; p < 4; ++p, nibbles += 32, codes += 64)
      for (int i = 0; i < 32; ++i) {
        const int bits = high[i] >> (2 * p);
        codes[i] = uint8_t((nibbles[i] & 15) | (bits & 1) << 4);
        codes[i + 32] = uint8_t((nibbles[i] >> 4) | (bits & 2) << 3);
      }
  }
};

}  // namespace kvasir::cpu::matmul
