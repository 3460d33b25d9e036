// Encodes a page of q8_0, q5_0 or q4_0 from its exact f16 rows, with the bytes of the scalar codecs
// (formats/q8_0.h and its neighbours): one scale for 32 dimensions of a token, codes nearest(x / scale).
// Included by each ISA file, into an unnamed namespace.
#pragma once
#include <utility>

#include "backends/cpu/kernels/attention/blocks_body.h"
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "base/mutation.h"
#include "formats/rounding.h"

namespace kvasir::cpu {
namespace {

template <typename Vec, typename Codes>
struct BlockEncoder {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr int n = Vec::kN;
  static constexpr BlockForm kForm = Codes::kForm;
  static constexpr bool kSigned = Codes::kOffset != 0;  // the scale takes the sign of the largest value
  static constexpr float kLow = kSigned ? -Codes::kOffset : -127, kHigh = kSigned ? Codes::kOffset - 1 : 127;
  // scale = largest / kRange
  static constexpr float kRange = kSigned ? kLow : kHigh;

  [[gnu::always_inline]] static I code(F x, F inverse) {
    const F high = Vec::set1(kHigh);
    F v = Vec::max(Vec::mul(x, inverse), Vec::set1(kLow));
    if (mutated(Mutation::kTie)) v = Vec::add(v, Vec::set1(0x1p-16f));
    const I signed_code = Vec::to_int(Vec::if_less(high, v, high, v));
    return kSigned ? Vec::iadd(signed_code, Vec::iset1(Codes::kOffset)) : signed_code;
  }
  // The byte of codes c and c + 16, or of one code.
  [[gnu::always_inline]] static I byte_of(I low, I high) {
    if constexpr (!kSigned) return Vec::bit_and(low, Vec::iset1(0xff));
    if (mutated(Mutation::kNibblesSwapped)) std::swap(low, high);
    const I nibble = Vec::iset1(15);
    return Vec::bit_or(Vec::bit_and(low, nibble), Vec::template shift_left32<4>(Vec::bit_and(high, nibble)));
  }
  // Two bytes as a 16-bit half.
  [[gnu::always_inline]] static void store_pair(std::byte* p, I first, I second) {
    Vec::store_u16(reinterpret_cast<uint16_t*>(p), Vec::bit_or(first, Vec::template shift_left32<8>(second)));
  }

  // n keys of one block, tokens across lanes: x is [32][32] (dimension, token), codes [codes / 2][32][2].
  static void encode_keys(const F16* x, std::byte* codes, std::byte* high, F16* scales) {
    F top = Vec::zero();  // of equal magnitudes the first
    for (int d = 0; d < 32; ++d) {
      const F v = Vec::load(x + d * 32);
      if (mutated(Mutation::kFirstOfEquals) && kSigned)
        top = Vec::if_less(Vec::abs(v), Vec::abs(top), top, v);
      else
        top = kSigned ? Vec::if_less(Vec::abs(top), Vec::abs(v), v, top) : Vec::max(top, Vec::abs(v));
    }
    Vec::store(scales, Vec::div(top, Vec::set1(kRange)));  // f16 over 8 or more stays in range
    const F scale = Vec::load(scales);
    const F inverse =
        Vec::if_less(Vec::zero(), Vec::abs(scale), Vec::div(Vec::set1(1.0f), scale), Vec::zero());
    I bits = Vec::izero();
    static_for<kForm.codes / 2>([&](auto half) [[gnu::always_inline]] {
      I bytes[2];
      static_for<2>([&](auto j) [[gnu::always_inline]] {
        constexpr int c = 2 * half + j;
        const I low = code(Vec::load(x + c * 32), inverse);
        const I up = kSigned ? code(Vec::load(x + (c + 16) % 32 * 32), inverse) : low;
        bytes[j] = byte_of(low, up);
        if constexpr (kForm.high != 0) {
          bits = Vec::bit_or(bits, Vec::template shift_left32<c>(Vec::template shift_right<4>(low)));
          bits = Vec::bit_or(bits, Vec::template shift_left32<c + 16>(Vec::template shift_right<4>(up)));
        }
      });
      store_pair(codes + half * 64, bytes[0], bytes[1]);
    });
    if constexpr (kForm.high != 0) Vec::istore(high, bits);
  }

  // Scale of one token's block of a value; returns 1 / scale.
  static float scale_of(const F16* x, F16& stored) {
    F most = Vec::zero();
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += n) most = Vec::max(most, Vec::abs(Vec::load(x + i)));
    float top = Vec::reduce_max(most);
    if constexpr (kSigned) {
      const uint16_t magnitude = f32_to_f16(top);
      int i = 0;
      while (i < 31 && (x[i].bits & 0x7fff) != magnitude) ++i;
      if (magnitude != 0 && (x[i].bits & 0x8000)) top = -top;
    }
    stored.bits = formats::f16_scale(top / kRange);
    return formats::inverse_or_zero(f16_to_f32(stored.bits));
  }

  // Two values of one block, dimensions across lanes: x is [2][32] (token, dimension), codes [codes][2].
  static void encode_values(const F16* x, std::byte* codes, std::byte* high, F16* scales) {
    const F inverse[2] = {Vec::set1(scale_of(x, scales[0])), Vec::set1(scale_of(x + 32, scales[1]))};
    alignas(64) uint8_t plain[2][32];
    for (int i = 0; i < kForm.codes; i += n) {
      I bytes[2];
#pragma GCC unroll 2
      for (int t = 0; t < 2; ++t) {
        const I low = code(Vec::load(x + t * 32 + i), inverse[t]);
        const I up = kSigned ? code(Vec::load(x + t * 32 + (i + 16) % 32), inverse[t]) : low;
        bytes[t] = byte_of(low, up);
        if constexpr (kForm.high != 0) {
          Vec::store_u8(plain[t] + i, low);
          Vec::store_u8(plain[t] + i + 16, up);
        }
      }
      store_pair(codes + i * 2, bytes[0], bytes[1]);
    }
    if constexpr (kForm.high != 0) {
      uint32_t bits[2] = {};
      for (int t = 0; t < 2; ++t)
        for (int i = 0; i < 32; ++i) bits[t] |= uint32_t(plain[t][i] >> 4) << i;
      __builtin_memcpy(high, bits, sizeof(bits));
    }
  }

  static void encode(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
    const F16* x = reinterpret_cast<const F16*>(exact);
    F16* scales = reinterpret_cast<F16*>(region + kForm.scale_plane(head_dim));
    std::byte* high = region + kForm.high_plane(head_dim);
    if (side == KvSide::kKey) {  // a slot is a token's block
      for (int slot = 0; slot < 2 * head_dim; slot += 32)
        for (int first = 0; first < 32; first += n)
          encode_keys(x + slot * 32 + first, region + slot * kForm.codes + first * 2,
                      high + (slot + first) * kForm.high, scales + slot + first);
      return;
    }
    for (int slot = 0; slot < 2 * head_dim; slot += 2)
      encode_values(x + slot * 32, region + slot * kForm.codes, high + slot * kForm.high, scales + slot);
  }
};

}  // namespace
}  // namespace kvasir::cpu
