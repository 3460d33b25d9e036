// Symbols of three bits by pairs of images, the states of tbq3_tcq from them, and its shares; what holds for
// every vector type. Included into an unnamed namespace by the image files of the ISAs.
#pragma once
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/kv_page.h"

namespace kvasir::cpu {
namespace {

template <typename Vec>
struct ThreeBitSymbols {
  using I = typename Vec::I;
  static constexpr int kPairs = kBlockImages / 2;

  // Symbols of images 2 p and 2 p + 1 of a block: bits 0 .. 2 and 3 .. 5, above them anything.
  template <int p>
  [[gnu::always_inline]] static I pair(const std::byte* lines) {
    if constexpr (p < 3) {
      return Vec::iload(lines + p * kImage);
    } else {
      const I third = Vec::iload(lines + 2 * kImage);  // its top bits are theirs
      const I odd = Vec::select_bits(0x18, Vec::template shift_right<3>(Vec::iload(lines + kImage)),
                                     Vec::template shift_right<2>(third));
      return Vec::select_bits(0x03, Vec::template shift_right<6>(Vec::iload(lines)),
                              Vec::select_bits(0x04, Vec::template shift_right<4>(third), odd));
    }
  }

  // The last two symbols of each value's state and the lower two bits of the one before, of both images of a
  // pair. Along::moved<k, up>(): the symbols k values on, up by `up` bits of their byte.
  template <typename Along>
  [[gnu::always_inline]] static void states(const Along& along, I (&out)[2]) {
    out[0] = Vec::select_bits(7, along.now, along.template moved<1, 3>());
    out[1] = Vec::select_bits(7, Vec::template shift_right<3>(along.now), along.template moved<1, 0>());
    out[0] = Vec::select_bits(0x3f, out[0], along.template moved<2, 6>());
    out[1] = Vec::select_bits(0x3f, out[1], along.template moved<2, 3>());
  }
};

// TcqShares of image_source.h, of one block.
template <typename Vec>
struct TcqBlock {
  alignas(64) float top[kPage];
  alignas(64) int16_t share[kPage];  // of the first `n` tokens

  TcqBlock(const std::byte* region, int head_dim, int block, int first, int n) {
    const auto most_share = Vec::set1(32767.0f);
    for (int t = 0; t < n; t += Vec::kN) {
      const auto scale = [&](int b) {
        return Vec::load(reinterpret_cast<const F16*>(region + tcq_block(head_dim, b)) + first + t);
      };
      auto most = scale(0);
      for (int b = 1; b < head_dim / 128; ++b) most = Vec::max(most, scale(b));
      Vec::store(top + t, most);
      const auto of_top = Vec::if_less(Vec::zero(), most, Vec::div(scale(block), most), Vec::set1(1.0f));
      const auto whole = Vec::mul(of_top, Vec::set1(32768.0f));
      Vec::store_u16(reinterpret_cast<uint16_t*>(share + t),
                     Vec::to_int(Vec::if_less(whole, most_share, whole, most_share)));
    }
  }
};

}  // namespace
}  // namespace kvasir::cpu
