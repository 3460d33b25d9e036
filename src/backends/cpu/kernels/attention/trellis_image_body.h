// Images of tbq3_tcq by vectors: states from symbols by shifts, levels by byte lookups. The places are those
// of kv_page.h; image_avx512.cpp has the same with wider tables and masks. Included by the image files of
// other ISAs, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/trellis_symbols_body.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// Moves symbols k values on, those of `before` first, and up by `up` bits of their byte; bits of a neighbour
// may follow them.
template <typename Vec>
struct AlongKeys {  // the values of a byte's dword, then of the next vector
  typename Vec::I now, before;
  template <int k, int up>
  [[gnu::always_inline]] typename Vec::I moved() const {
    constexpr int by = 8 * k + up;
    return Vec::bit_or(Vec::template shift_left32<by>(now), Vec::template shift_right<32 - by>(before));
  }
};
template <typename Vec>
struct AlongLanes {  // the lanes, then those of the next vector
  typename Vec::I now, before;
  template <int k, int up>
  [[gnu::always_inline]] typename Vec::I moved() const {
    const auto symbols = Vec::template lanes_before<k>(now, before);
    if constexpr (up == 0)
      return symbols;
    else
      return Vec::template shift_left32<up>(symbols);
  }
};

// tbq3_tcq (kv_page.h): the symbols of a row of tbq3_ht, but two before each block of 128 come from their own
// bytes, a table need not be odd, and each block and token has a share by which its bytes are multiplied
// (tcq_byte).
template <typename Vec>
struct TcqImages {
  using I = typename Vec::I;
  using Symbols = ThreeBitSymbols<Vec>;
  static constexpr int n = Vec::kN, kLines = 3 * kImage;
  typename Vec::template ByteTable<256> table[2];  // states whose first bit is 0, 1
  I flip;                                          // the bias as an exclusive or
  bool shared;

  TcqImages(const formats::TcqTable& given, int head_dim, int bias)
      : flip(Vec::iset1(int32_t(uint32_t(bias) * 0x01010101u))), shared(head_dim > 128) {
    for (int i = 0; i < 2; ++i)
      table[i].load(reinterpret_cast<const uint8_t*>(given.rounded.data()) + 256 * i);
  }

  // Of a pair; before their bias and share.
  template <typename Along>
  [[gnu::always_inline]] void levels(I now, I before, I (&out)[2]) const {
    const Along along{now, before};
    I index[2];
    Symbols::states(along, index);
    const I second = along.template moved<2, 0>();
    out[0] = Vec::template by_bit<2>(second, table[0].lookup(index[0]), table[1].lookup(index[0]));
    out[1] = Vec::template by_bit<5>(second, table[0].lookup(index[1]), table[1].lookup(index[1]));
  }

  // Bytes of 16-bit lanes with their sign.
  [[gnu::always_inline]] static I widened(I bytes) {
    return Vec::sub16(Vec::bit_xor(Vec::bit_and(bytes, Vec::iset1(0x00ff00ff)), Vec::iset1(0x00800080)),
                      Vec::iset1(0x00800080));
  }
  // Shares of the even and of the odd bytes, in 16-bit lanes.
  [[gnu::always_inline]] I finish(I bytes, I even, I odd) const {
    if (shared)
      bytes = Vec::join_bytes(Vec::mul_round15(widened(bytes), even),
                              Vec::mul_round15(widened(Vec::template shift_right<8>(bytes)), odd));
    return Vec::bit_xor(bytes, flip);
  }

  static int before_of(const std::byte* region, int head_dim, int block, int token) {
    return std::to_integer<int>(region[tcq_block(head_dim, block) + kTcqBefore + size_t(token)]);
  }

  void keys(const std::byte* region, int group, int head_dim, std::byte* images, const Streams& next) const {
    const int n_blocks = head_dim / kBlockDims;
    const std::byte* lines = region + size_t(group) * size_t(n_blocks) * kLines;
    // Of both images of a pair: the two symbols before, in the upper bytes of their dwords; shares twice a
    // dword.
    alignas(64) int32_t start[16], share[kGroupKeys];
    for (int block = 0; block < head_dim / 128; ++block) {
      const TcqBlock<Vec> shares(region, head_dim, block, group * kGroupKeys, kGroupKeys);
      for (int t = 0; t < kGroupKeys; ++t) share[t] = int32_t(uint32_t(uint16_t(shares.share[t])) * 0x10001u);
      for (int t = 0; t < 16; ++t) {
        const uint32_t a = uint32_t(before_of(region, head_dim, block, group * kGroupKeys + t)),
                       b = uint32_t(before_of(region, head_dim, block, group * kGroupKeys + 16 + t));
        start[t] = int32_t(((a & 7) | (b & 7) << 3) << 16 | ((a >> 3 & 7) | (b & 0x38)) << 24);
      }
      for (int lane = 0; lane < 16; lane += n) {
        const std::byte* p = lines + block * 8 * kLines + lane * 4;
        std::byte* out = images + block * 8 * kBlockImages * kImage + lane * 4;
        const I even[2] = {Vec::iload(share + lane), Vec::iload(share + 16 + lane)};
        I last = Vec::iload(start + lane);
        for (int i = 0; i < 8; ++i, p += kLines, out += kBlockImages * kImage) {
          if (lane == 0) prefetch_half(next, block * 8 + i, 3);
          static_for<kBlockImages / 2>([&](auto j) [[gnu::always_inline]] {
            const I now = Symbols::template pair<j>(p);
            I bytes[2];
            levels<AlongKeys<Vec>>(now, last, bytes);
            last = now;
            for (int half = 0; half < 2; ++half)
              Vec::istore(out + (j * 2 + half) * kImage, finish(bytes[half], even[half], even[half]));
          });
        }
      }
    }
  }

  // Two blocks of 16 dimensions and 32 tokens, given the vectors of symbols before them (two dwords are used)
  // and the tokens' shares.
  void values(const std::byte* (&before)[kBlockImages / 2], const std::byte* lines, const int16_t* shares,
              std::byte* images) const {
    static_for<kBlockImages / 2>([&](auto j) [[gnu::always_inline]] {
      I even[2], odd[2];
      for (int i = 0; i < 2; ++i) {
        const int16_t* s = shares + 8 * j + 4 * i;
        even[i] = Vec::iset1(int(uint16_t(s[0]) | uint32_t(uint16_t(s[2])) << 16));
        odd[i] = Vec::iset1(int(uint16_t(s[1]) | uint32_t(uint16_t(s[3])) << 16));
      }
      I last = Vec::iload(before[j]);
      for (int half = 0; half < 2; ++half)
        for (int lane = 0; lane < 16; lane += n) {
          const I now = Symbols::template pair<j>(lines + half * kLines + lane * 4);
          I bytes[2];
          levels<AlongLanes<Vec>>(now, last, bytes);
          last = now;
          for (int i = 0; i < 2; ++i)
            Vec::istore(images + (half * kBlockImages + j * 2 + i) * kImage + lane * 4,
                        finish(bytes[i], even[i], odd[i]));
        }
    });
  }
};

template <typename Vec>
struct TcqSources {
  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable* given, const Streams& next) {
    const formats::TcqTable& table = tcq_table(given);
    const TcqBlock<Vec> first(region, head_dim, 0, group * kGroupKeys, kGroupKeys);
    for (int t = 0; t < kGroupKeys; ++t) scales[t] = first.top[t] * table.step;
    TcqImages<Vec>(table, head_dim, bias).keys(region, group, head_dim, images, next);
  }

  static void value_scales(const std::byte* region, int head_dim, float* scales,
                           const formats::TcqTable* given) {
    const TcqBlock<Vec> first(region, head_dim, 0, 0, kPage);
    for (int t = 0; t < kPage; ++t) scales[t] = first.top[t] * tcq_table(given).step;
  }

  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable* given) {
    using Images = TcqImages<Vec>;
    constexpr int kLines = Images::kLines, kSliceLines = 4 * kLines, kPairs = kBlockImages / 2;
    const Images vectors(tcq_table(given), head_dim, 0);
    const TcqBlock<Vec> shares(region, head_dim, d / 128, 0, kPage);
    const std::byte* lines = region + size_t(d / kSlice) * kSliceLines;
    for (int half = 0; half < 2; ++half) {
      // The last lanes of a vector of symbols: of the 16 dimensions before, or made of the block's own two
      // symbols.
      alignas(64) uint32_t start[kPairs][16] = {};
      for (int j = 0; j < kPairs; ++j) {
        for (int t = 0; t < 4 && d % 128 == 0; ++t) {
          const uint32_t a = uint32_t(Images::before_of(region, head_dim, d / 128, half * 32 + j * 8 + t)),
                         b = uint32_t(
                             Images::before_of(region, head_dim, d / 128, half * 32 + j * 8 + 4 + t));
          start[j][14] |= ((a & 7) | (b & 7) << 3) << (8 * t);
          start[j][15] |= ((a >> 3 & 7) | (b & 0x38)) << (8 * t);
        }
      }
      if (d % 128 != 0) {
        const std::byte* p = lines - kSliceLines + kLines + half * 2 * kLines + (16 - Vec::kN) * 4;
        static_for<kPairs>([&](auto j) [[gnu::always_inline]] {
          Vec::istore(start[j] + 16 - Vec::kN, Images::Symbols::template pair<j>(p));
        });
      }
      const std::byte* before[kPairs];
      for (int j = 0; j < kPairs; ++j)
        before[j] = reinterpret_cast<const std::byte*>(start[j] + 16 - Vec::kN);
      vectors.values(before, lines + half * 2 * kLines, &shares.share[half * 32],
                     images + half * 2 * kBlockImages * kImage);
    }
  }

  static constexpr DType kType = DType::tbq3_tcq;
  static constexpr ImageSource kSource{kType, 1, 3, nullptr, keys, value_scales, values};
  static const ImageSource& get() { return kSource; }
};

}  // namespace
}  // namespace kvasir::cpu
