// q6_k: 256 values, f16 d, a signed 8-bit scale every 16: value = d * scale * (code - 32).
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Unit: d[32] f16, 8 x (scales i8 [2 halves][32], codes).
template <>
struct WeightLayout<DType::q6_k> : QuantisedLayout<8, 210, 4, 2, 64, 64> {
  static constexpr int kOffset = 32;
  static constexpr bool kMin = false, kHalves = true;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    const auto d = V::load_f16(unit + 2 * lane);
    const std::byte* sc = unit + block_offset(j) + lane;
    out.scale[0] = V::mul(d, V::from_i8(V::load_small(sc)));
    out.scale[1] = V::mul(d, V::from_i8(V::load_small(sc + 32)));
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    const auto* low = reinterpret_cast<const uint8_t*>(source);
    const auto* high = low + 128;
    for (int n = 0; n < 2; ++n, low += 64, high += 32, codes += 128)
      for (int i = 0; i < 32; ++i) {
        const int bits = high[i];
        codes[i] = uint8_t((low[i] & 15) | (bits & 3) << 4);
        codes[i + 32] = uint8_t((low[i + 32] & 15) | (bits & 12) << 2);
        codes[i + 64] = uint8_t((low[i] >> 4) | (bits & 48));
        codes[i + 96] = uint8_t((low[i + 32] >> 4) | (bits & 192) >> 2);
      }
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source + 208);
    for (int k = 0; k < 16; ++k) unit[block_offset(k / 2) + 32 * (k % 2) + row] = source[192 + k];
  }
};

}  // namespace kvasir::cpu::matmul
