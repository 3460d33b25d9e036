// Encodes a page of q8_0 from its exact f16 rows, with the bytes of the scalar codec (formats/q8_0.h): one
// scale for 32 dimensions of a token, max|x| / 127, and codes nearest(x / scale). Included by each ISA file,
// into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "formats/rounding.h"

namespace kvasir::cpu {
namespace {

template <typename Vec>
struct Q8Encoder {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr int n = Vec::kN;

  [[gnu::always_inline]] static I code(F x, F inverse) {
    const F limit = Vec::set1(127.0f), v = Vec::max(Vec::mul(x, inverse), Vec::set1(-127.0f));
    return Vec::to_int(Vec::if_less(limit, v, limit, v));
  }
  // Two codes as the bytes of a 16-bit half.
  [[gnu::always_inline]] static void store_pair(std::byte* p, I first, I second) {
    const I low = Vec::bit_and(first, Vec::iset1(0xff));
    Vec::store_u16(reinterpret_cast<uint16_t*>(p), Vec::bit_or(low, Vec::template shift_left32<8>(second)));
  }

  // n keys of one block, tokens across lanes: x is [32][32] (dimension, token), codes [16][32][2].
  static void encode_keys(const F16* x, std::byte* codes, F16* scales) {
    F top = Vec::zero();
    for (int d = 0; d < 32; ++d) top = Vec::max(top, Vec::abs(Vec::load(x + d * 32)));
    // max|x| is an f16, so max|x| / 127 does not overflow one.
    Vec::store(scales, Vec::div(top, Vec::set1(127.0f)));
    const F scale = Vec::load(scales);
    const F inverse = Vec::if_less(Vec::zero(), scale, Vec::div(Vec::set1(1.0f), scale), Vec::zero());
    for (int d = 0; d < 32; d += 2)
      store_pair(codes + d * 32, code(Vec::load(x + d * 32), inverse),
                 code(Vec::load(x + (d + 1) * 32), inverse));
  }

  static float scale_of(const F16* x, F16& stored) {
    F top = Vec::zero();
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += n) top = Vec::max(top, Vec::abs(Vec::load(x + i)));
    stored.bits = formats::f16_scale(Vec::reduce_max(top) / 127.0f);
    return formats::inverse_or_zero(f16_to_f32(stored.bits));
  }

  // Two values of one block, dimensions across lanes: x is [2][32] (token, dimension), codes [32][2].
  static void encode_values(const F16* x, std::byte* codes, F16* scales) {
    const F first = Vec::set1(scale_of(x, scales[0])), second = Vec::set1(scale_of(x + 32, scales[1]));
#pragma GCC unroll 8
    for (int i = 0; i < 32; i += n)
      store_pair(codes + i * 2, code(Vec::load(x + i), first), code(Vec::load(x + 32 + i), second));
  }

  static void encode(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
    const F16* x = reinterpret_cast<const F16*>(exact);
    F16* scales = reinterpret_cast<F16*>(region + kQ8Form.scale_plane(head_dim));
    // A block of 32 x 32 values (keys), or of 64 x 32 (values), has as many codes and follows the last one.
    if (side == KvSide::kKey) {
      for (int block = 0; block < 2 * head_dim / 32; ++block, x += 32 * 32, region += 32 * 32, scales += 32)
        for (int first = 0; first < 32; first += n)
          encode_keys(x + first, region + first * 2, scales + first);
      return;
    }
    for (int pair = 0; pair < head_dim / 32 * kPage / 2; ++pair)
      encode_values(x + pair * 64, region + pair * 64, scales + pair * 2);
  }
};

}  // namespace
}  // namespace kvasir::cpu
