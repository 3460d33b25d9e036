// q2_k: 256 values, f16 d and dmin, 4-bit scale and minimum every 16: value = d * (s & 15) * code - dmin * (s
// >> 4).
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Unit: d[32] f16, dmin[32] f16, 8 x (s [2 halves][32], codes).
template <>
struct WeightLayout<DType::q2_k> : QuantisedLayout<8, 84, 2, 0, 128, 64> {
  static constexpr int kOffset = 0;
  static constexpr bool kMin = true, kHalves = true;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    const auto d = V::load_f16(unit + 2 * lane), dmin = V::load_f16(unit + 64 + 2 * lane);
    for (int h = 0; h < 2; ++h) {
      const auto s = V::load_small(unit + block_offset(j) + 32 * h + lane);
      out.scale[h] = V::mul(d, V::from_u8(V::small_mask(s, 15)));
      const auto m = V::from_u8(V::small_mask(V::template small_shift<-4>(s), 15));
      out.min[h] = V::negate(V::mul(dmin, m));
    }
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    const auto* two = reinterpret_cast<const uint8_t*>(source + 16);
    for (int b = 0; b < 8; ++b, codes += 32)
      for (int i = 0; i < 32; ++i) codes[i] = (two[b / 4 * 32 + i] >> (2 * (b % 4))) & 3;
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source + 80);
    copy16(unit + 64 + 2 * row, source + 82);
    for (int k = 0; k < 16; ++k) unit[block_offset(k / 2) + 32 * (k % 2) + row] = source[k];
  }
};

}  // namespace kvasir::cpu::matmul
