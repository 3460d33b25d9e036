// q3_k: 256 values, f16 d, a 6-bit scale every 16: value = d * (scale - 32) * (code - 4).
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Unit: d[32] f16, 16 six-bit scale vectors, 8 x codes.
template <>
struct WeightLayout<DType::q3_k> : QuantisedLayout<8, 110, 2, 1, 448, 0> {
  static constexpr int kOffset = 4;
  static constexpr bool kMin = false, kHalves = true;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    const auto d = V::load_f16(unit + 2 * lane);
    for (int h = 0; h < 2; ++h) {
      const auto s = V::from_u8(six_bits<V>(unit + 64, 16, 2 * j + h, lane));
      out.scale[h] = V::mul(d, V::sub(s, V::set1(32)));
    }
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    const auto* mask = reinterpret_cast<const uint8_t*>(source);
    const auto* low = mask + 32;
    for (int b = 0; b < 8; ++b, codes += 32)
      for (int i = 0; i < 32; ++i) {
        const int two = (low[b / 4 * 32 + i] >> (2 * (b % 4))) & 3;
        codes[i] = uint8_t(two | ((mask[i] >> b) & 1) << 2);
      }
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source + 108);
    const auto* sc = reinterpret_cast<const uint8_t*>(source + 96);
    for (int k = 0; k < 16; ++k) {
      const int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4;
      const int high = (sc[8 + k % 4] >> (2 * (k / 4))) & 3;
      set_six_bits(unit + 64, 16, k, row, uint8_t(low | high << 4));
    }
  }
};

}  // namespace kvasir::cpu::matmul
