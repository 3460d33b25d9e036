// q5_0: 32 values, f16 scale d, fifth bits apart; value = d * (code - 16). q5_1: d * code + m.
#pragma once
#include "backends/cpu/kernels/matmul/types/q4_0.h"

namespace kvasir::cpu::matmul {

static inline void unpack_five_bits(const std::byte* high, const std::byte* nibbles, uint8_t* codes) {
  unpack_nibbles(nibbles, codes);
  for (int i = 0; i < 4; ++i) {
    // Bit k of the byte to bit 4 of byte k: copies, one bit of each kept, carried up to bit 7, then down.
    const uint64_t copies = uint8_t(high[i]) * 0x0101010101010101u & 0x8040201008040201u;
    const uint64_t bits = (copies + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u;
    uint64_t eight;
    std::memcpy(&eight, codes + 8 * i, 8);
    eight |= bits >> 3;
    std::memcpy(codes + 8 * i, &eight, 8);
  }
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
