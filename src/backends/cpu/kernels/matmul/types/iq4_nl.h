// iq4_nl: 32 values, f16 d; value = d * levels[code]. iq4_xs: 256 values, f16 d and a 6-bit scale every 32:
// value = d * (scale - 32) * levels[code].
#pragma once
#include "backends/cpu/kernels/matmul/types/q4_0.h"

namespace kvasir::cpu::matmul {

struct Iq4Levels {
  // levels + 128, so that the dot product sees unsigned codes.
  static constexpr uint8_t kLevels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};
};

// Unit: d[32] f16, codes.
template <>
struct WeightLayout<DType::iq4_nl> : QuantisedLayout<1, 18, 4, 0, 0, 64> {
  static constexpr int kOffset = 128;
  static constexpr bool kMin = false, kHalves = false;
  static constexpr const uint8_t* kTable = Iq4Levels::kLevels;
  static constexpr bool kHasTable = true;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int, int lane, Scales<V>& out) {
    out.scale[0] = V::load_f16(unit + 2 * lane);
  }
  static void unpack(const std::byte* source, uint8_t* codes) { unpack_nibbles(source + 2, codes); }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
  }
};

// Unit: d[32] f16, 8 six-bit scale vectors, 8 x codes.
template <>
struct WeightLayout<DType::iq4_xs> : QuantisedLayout<8, 136, 4, 0, 256, 0> {
  static constexpr int kOffset = 128;
  static constexpr bool kMin = false, kHalves = false;
  static constexpr const uint8_t* kTable = Iq4Levels::kLevels;
  static constexpr bool kHasTable = true;

  template <class V>
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    const auto s = V::from_u8(six_bits<V>(unit + 64, 8, j, lane));
    out.scale[0] = V::mul(V::load_f16(unit + 2 * lane), V::sub(s, V::set1(32)));
  }
  static void unpack(const std::byte* source, uint8_t* codes) {
    for (int j = 0; j < 8; ++j) unpack_nibbles(source + 8 + 16 * j, codes + 32 * j);
  }
  static void pack_scales(const std::byte* source, int row, std::byte* unit) {
    copy16(unit + 2 * row, source);
    uint16_t high;
    std::memcpy(&high, source + 2, 2);
    for (int j = 0; j < 8; ++j) {
      const int low = (uint8_t(source[4 + j / 2]) >> (4 * (j % 2))) & 15;
      set_six_bits(unit + 64, 8, j, row, uint8_t(low | ((high >> (2 * j)) & 3) << 4));
    }
  }
};

}  // namespace kvasir::cpu::matmul
