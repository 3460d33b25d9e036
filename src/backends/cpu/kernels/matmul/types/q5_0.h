// q5_0: 32 values, f16 scale d, fifth bits apart; value = d * (code - 16). q5_1: d * code + m.
#pragma once
#include "backends/cpu/kernels/matmul/types/q4_0.h"

namespace kvasir::cpu::matmul {

static inline void unpack_five_bits(const std::byte* high, const std::byte* nibbles, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  unpack_nibbles(nibbles, codes);
  for (int i = 0; i < 32; ++i) codes[i] |= uint8_t(((bits >> i) & 1) << 4);
}

// Unit: d[32] f16, codes.
template <>
struct WeightLayout<DType::q5_0> : QuantisedLayout<1, 22, 4, 1, 0, 64> {
  static constexpr int kOffset = 16;
  static constexpr bool kMin = false, kHalves = false;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    unpack_five_bits(source + 2, source + 6, codes);
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
  }
};

// Unit: d[32] f16, m[32] f16, codes.
template <>
struct WeightLayout<DType::q5_1> : QuantisedLayout<1, 24, 4, 1, 0, 128> {
  static constexpr int kOffset = 0;
  static constexpr bool kMin = true, kHalves = false;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
    out.min[0] = V::load_f16(unit + 64 + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    unpack_five_bits(source + 4, source + 8, codes);
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
    copy16(unit + 64 + 2 * row, source + 2);
  }
};

}  // namespace kvasir::cpu::matmul
