// Symbols of a trellis type by pairs of images, and the states' low bits from them; what holds for every
// vector type. Along::moved<k, up>() is what trellis_image_body.h says. Included into an unnamed namespace by
// the image files of the ISAs.
#pragma once
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/kv_page.h"

namespace kvasir::cpu {
namespace {

template <typename Vec, int b>
struct TrellisSymbols {
  using I = typename Vec::I;
  static constexpr int kLines = b * kImage, kPairs = kBlockImages / 2;
  static constexpr uint8_t kMask = (1 << b) - 1;

  // Symbols of images 2 p and 2 p + 1 of a block: bits 0 .. b - 1 and b .. 2 b - 1, above them anything.
  template <int p>
  [[gnu::always_inline]] static I pair(const std::byte* lines) {
    if constexpr (b == 2) {
      const I line = Vec::iload(lines + p / 2 * kImage);
      if constexpr (p % 2 == 0)
        return line;
      else
        return Vec::template shift_right<4>(line);
    } else if constexpr (b != 3 || p < 3) {
      return Vec::iload(lines + p * kImage);
    } else {
      const I third = Vec::iload(lines + 2 * kImage);  // its top bits are theirs
      const I odd = Vec::select_bits(0x18, Vec::template shift_right<3>(Vec::iload(lines + kImage)),
                                     Vec::template shift_right<2>(third));
      return Vec::select_bits(0x03, Vec::template shift_right<6>(Vec::iload(lines)),
                              Vec::select_bits(0x04, Vec::template shift_right<4>(third), odd));
    }
  }

  // What the symbols before those of a pair leave: the pair, and (2 bits) its last two symbols in a byte.
  struct Before {
    I symbols, two[2];
  };
  template <typename Along>
  [[gnu::always_inline]] static void two_symbols(const Along& along, I (&two)[2]) {
    two[0] = Vec::select_bits(kMask, along.now, along.template moved<1, b>());
    two[1] = Vec::select_bits(kMask, Vec::template shift_right<b>(along.now), along.template moved<1, 0>());
  }
  // 3 bits: those and the lower two bits of the symbol before.
  template <typename Along>
  [[gnu::always_inline]] static void three_symbols(const Along& along, I (&three)[2]) {
    two_symbols(along, three);
    three[0] = Vec::select_bits(0x3f, three[0], along.template moved<2, 6>());
    three[1] = Vec::select_bits(0x3f, three[1], along.template moved<2, 3>());
  }
  template <typename Along>
  [[gnu::always_inline]] static Before before(I symbols) {  // what came before them matters no more
    Before out{symbols, {}};
    if constexpr (b == 2) two_symbols(Along{symbols, symbols}, out.two);
    return out;
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
