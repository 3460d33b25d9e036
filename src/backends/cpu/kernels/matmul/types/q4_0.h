// q4_0: 32 values, f16 scale d; value = d * (code - 8). q4_1: d * code + m.
#pragma once
#include "backends/cpu/kernels/matmul/types/layout.h"

namespace kvasir::cpu::matmul {

// Low nibbles are values 0..15, high nibbles 16..31.
static inline void unpack_nibbles(const std::byte* source, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = uint8_t(source[i]) & 15;
    codes[i + 16] = uint8_t(source[i]) >> 4;
  }
}

// Unit: d[32] f16, codes.
template <>
struct WeightLayout<DType::q4_0> : QuantisedLayout<1, 18, 4, 0, 0, 64> {
  static constexpr int kOffset = 8;
  static constexpr bool kMin = false, kHalves = false;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) { unpack_nibbles(source + 2, codes); }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
  }
};

// Unit: d[32] f16, m[32] f16, codes.
template <>
struct WeightLayout<DType::q4_1> : QuantisedLayout<1, 20, 4, 0, 0, 128> {
  static constexpr int kOffset = 0;
  static constexpr bool kMin = true, kHalves = false;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
    out.min[0] = V::load_f16(unit + 64 + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) { unpack_nibbles(source + 4, codes); }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
    copy16(unit + 64 + 2 * row, source + 2);
  }
};

}  // namespace kvasir::cpu::matmul
