// Images of tbq2_ht tbq3_ht tbq4_ht by vectors. In the places of kv_page.h the symbols before those of a
// vector are another vector, so that a state is a select and a level is looked up by the byte it lies in
// (image_source.h, SharedByte). Included by the image files of the ISAs, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/trellis_symbols_body.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// Levels::expand(before, now, out, one, two): from bytes of symbols and those before them, the levels of
// their steps; step i goes to out + i % 2 * one + i / 2 * two.
template <typename Vec, int b, template <typename, int> typename Levels>
struct StripedImages {
  using I = typename Vec::I;
  static constexpr int n = Vec::kN, kLines = b * kImage;
  static constexpr int kSteps = SharedByte<b>::kSteps, kBytes = kBlockImages / kSteps;
  Levels<Vec, b> levels;

  explicit StripedImages(int bias) : levels(bias) {}

  // Bytes of symbols of images kSteps * u .. of a block.
  template <int u>
  [[gnu::always_inline]] static I bytes(const std::byte* lines) {
    if constexpr (b == 3)
      return ThreeBitSymbols<Vec>::template pair<u>(lines);
    else
      return Vec::iload(lines + u * kImage);
  }
  // Each stripe's from the one before.
  static I next_stripe_of_key(I x) {
    return Vec::bit_or(Vec::template shift_left32<8>(x), Vec::template shift_right<24>(x));
  }

  void keys(const std::byte* lines, int n_blocks, std::byte* images, const Streams& next) const {
    for (int lane = 0; lane < 16; lane += n) {
      const std::byte* p = lines + lane * 4;
      std::byte* out = images + lane * 4;
      unsigned line = 0;
      I before[2];
      for (int half = 0; half < 2; ++half) {
        before[half] = next_stripe_of_key(bytes<kBytes - 1>(p + (n_blocks - 2 + half) * kLines));
        if (mutated(Mutation::kSeam)) before[half] = Vec::izero();
      }
      for (int i = 0; i < n_blocks; i += 2, out += 2 * kBlockImages * kImage)
        static_for<2>([&](auto half) [[gnu::always_inline]] {
          I last = before[half];
          static_for<kBytes>([&](auto u) [[gnu::always_inline]] {
            constexpr int kAt = half * kBytes + u, kOf = 2 * kBytes;
            if constexpr (kAt * b % kOf < b)
              if (lane == 0) prefetch_line(next, line++);
            const I now = bytes<u>(p);
            levels.expand(last, now, out + (u * kSteps * 2 + half) * kImage, 2 * kImage, 4 * kImage);
            last = now;
          });
          before[half] = last;
          p += kLines;
        });
    }
  }

  // Four steps of a page's values, from `first` on.
  void values(const std::byte* region, int head_dim, int first, std::byte* images) const {
    constexpr int kGroup = 8 * kLines;
    const std::byte* lines = region + first / 4 * kGroup;
    const std::byte* there = first ? lines - kGroup : region + (head_dim / 64 - 1) * kGroup;
    for (int t = 0; t < kPage; t += 8, lines += kLines, there += kLines) {
      std::byte* out = images + (t / 32 * 2 * kBlockImages + t % 32 / 4) * kImage;
#pragma GCC unroll 4
      for (int l = 0; l < b; ++l) __builtin_prefetch(lines + kGroup + l * kImage, 0, 3);
      for (int lane = 0; lane < 16; lane += n) {
        const std::byte *from = there + lane * 4, *neighbour = there + (lane + 16 - n) % 16 * 4;
        static_for<2>([&](auto quad) [[gnu::always_inline]] {
          constexpr int kCount = kBytes / 2, kLast = quad * kCount + kCount - 1;
          I before = bytes<kLast>(from);
          if (first == 0) before = Vec::template lanes_before<1>(before, bytes<kLast>(neighbour));
          static_for<kCount>([&](auto i) [[gnu::always_inline]] {
            constexpr int kOne = kBlockImages * kImage, kTwo = 4 * kOne;
            const I now = bytes<quad * kCount + i>(lines + lane * 4);
            levels.expand(before, now, out + quad * kImage + lane * 4 + i * kSteps / 2 * kTwo, kOne, kTwo);
            before = now;
          });
        });
      }
    }
  }
};

// Levels by lookups of a table of bytes, that of all states whose first bit is 0.
template <typename Vec, int b>
struct TableLevels {
  using I = typename Vec::I;
  static constexpr int kSteps = SharedByte<b>::kSteps, kTables = b == 2 ? 1 : 2, kHalf = b == 2 ? 128 : 256;
  typename Vec::template ByteTable<kHalf> table[kTables];

  explicit TableLevels(int bias) {
    for (int i = 0; i < kTables; ++i) {
      uint8_t bytes[256];
      const int order = b == 2 ? 2 : i;  // 2 bits: the one whose first bit lies on top
      __builtin_memcpy(bytes, trellis_bytes(b, bias != 0).level[order], 256);
      if (mutated(Mutation::kTrellisEntry)) bytes[SharedByte<b>::index(order, 37)] += 3;
      table[i].load(bytes);
    }
  }

  template <int k>
  static I turned_up(I x) {  // each byte's bits by k places
    if constexpr (k == 0)
      return x;
    else
      return Vec::select_bits(uint8_t(0xff << k), Vec::template shift_left32<k>(x),
                              Vec::template shift_right<8 - k>(x));
  }
  template <int i>
  [[gnu::always_inline]] I level(I before, I now) const {
    const I none = Vec::izero(), all = Vec::iset1(-1);
    if constexpr (b == 2) {
      const I state = i == 3 ? now : Vec::select_bits(uint8_t((4 << 2 * i) - 1), now, before);
      const I index = turned_up<(12 - 2 * i) % 8>(state);
      return Vec::bit_xor(Vec::template by_bit<7>(index, none, all),
                          table[0].lookup(Vec::bit_and(index, Vec::iset1(0x7f7f7f7f))));
    } else {
      I index = i == 1 ? now : Vec::select_bits((1 << b) - 1, now, before);
      if constexpr (b == 3)
        index = Vec::select_bits(0x3f, index, Vec::template shift_left32<6 - 3 * i>(before));
      return Vec::bit_xor(Vec::template by_bit<(b == 3 ? 2 : 0) + b * i>(before, none, all),
                          table[i].lookup(index));
    }
  }
  [[gnu::always_inline]] void expand(I before, I now, std::byte* out, int one, int two) const {
    static_for<kSteps>([&](auto i) [[gnu::always_inline]] {
      Vec::istore(out + i % 2 * one + i / 2 * two, level<i>(before, now));
    });
  }
};

template <typename Vec, template <typename, int> typename Levels>
struct StripedSources {
  static void half_scales(const std::byte* p, int count, float* scales) {
    for (int i = 0; i < count; i += Vec::kN)
      Vec::store(scales + i, Vec::load(reinterpret_cast<const F16*>(p) + i));
  }
  template <int b>
  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable*, const Streams& next) {
    const int n_blocks = head_dim / kBlockDims;
    half_scales(region + head_wide_scales(b, head_dim) + group * 64, kGroupKeys, scales);
    StripedImages<Vec, b, Levels>(bias).keys(region + size_t(group * n_blocks) * b * kImage, n_blocks, images,
                                             next);
  }
  template <int b>
  static void value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
    half_scales(region + head_wide_scales(b, head_dim), kPage, scales);
  }
  template <int b>
  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable*) {
    StripedImages<Vec, b, Levels>(0).values(region, head_dim, d / 16, images);
  }

  template <DType type>
  struct Of {
    static constexpr DType kType = type;
    static constexpr int b = trellis_bits(type);
    static constexpr ImageSource kSource{type, 1, b, nullptr, keys<b>, value_scales<b>, values<b>, true};
    static const ImageSource& get() { return kSource; }
  };
};

}  // namespace
}  // namespace kvasir::cpu
