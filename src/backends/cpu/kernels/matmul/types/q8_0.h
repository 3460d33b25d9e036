// q8_0: 32 values, f16 scale d; value = d * q. Codes are q + 128.
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Unit: d[32] f16, codes.
template <>
struct WeightLayout<DType::q8_0> : QuantisedLayout<1, 34, 8, 0, 0, 64> {
  static constexpr int kOffset = 128;
  static constexpr bool kMin = false, kHalves = false;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = uint8_t(source[2 + i]) ^ 0x80;
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
  }
};

}  // namespace kvasir::cpu::matmul
