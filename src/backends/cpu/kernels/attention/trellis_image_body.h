// Images of tbq2_ht tbq3_ht tbq4_ht by vectors: states from symbols by shifts, levels by byte lookups of half
// a table. The places are those of kv_page.h; image_avx512.cpp has the same with wider tables and masks.
// Included by the image files of other ISAs, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/image_body.h"
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

template <typename Vec, int b>
struct TrellisImages {
  using I = typename Vec::I;
  static constexpr int n = Vec::kN, kLines = b * kImage, kPairs = kBlockImages / 2;
  static constexpr int kHalf = b == 2 ? 128 : 256;  // levels whose state starts with a 0
  static constexpr uint8_t kMask = (1 << b) - 1;
  typename Vec::template ByteTable<kHalf> table;

  explicit TrellisImages(int bias) {
    uint8_t bytes[kHalf];
    __builtin_memcpy(bytes, trellis_bytes(b, bias != 0).level, kHalf);
    if (mutated(Mutation::kTrellisEntry)) bytes[37] = uint8_t(bytes[37] + 3);
    table.load(bytes);
  }

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
  template <typename Along>
  [[gnu::always_inline]] static Before before(I symbols) {  // what came before them matters no more
    Before out{symbols, {}};
    if constexpr (b == 2) two_symbols(Along{symbols, symbols}, out.two);
    return out;
  }

  // Levels of the states that a pair's symbols lead to. The table is odd: a state with its first bit set has
  // the complement of the level of the state without it.
  template <typename Along>
  [[gnu::always_inline]] void expand(I now, Before& before, std::byte* images) const {
    const I none = Vec::izero(), all = Vec::iset1(-1);
    const Along along{now, before.symbols};
    I index[2], first[2];
    two_symbols(along, index);
    if constexpr (b == 2) {
      for (int i = 0; i < 2; ++i) {
        const I old = before.two[i];
        before.two[i] = index[i];
        index[i] = Vec::select_bits(0x0f, index[i], Along{index[i], old}.template moved<2, 4>());
        first[i] = Vec::template by_bit<7>(index[i], none, all);
        index[i] = Vec::bit_and(index[i], Vec::iset1(0x7f7f7f7f));
      }
    } else {
      if constexpr (b == 3) {  // the lower two bits of the symbol before the last
        index[0] = Vec::select_bits(0x3f, index[0], along.template moved<2, 6>());
        index[1] = Vec::select_bits(0x3f, index[1], along.template moved<2, 3>());
      }
      const I second = along.template moved<2, 0>();
      first[0] = Vec::template by_bit<(b == 3 ? 2 : 0)>(second, none, all);
      first[1] = Vec::template by_bit<(b == 3 ? 5 : 4)>(second, none, all);
    }
    before.symbols = now;
    for (int i = 0; i < 2; ++i)
      Vec::istore(images + i * kImage, Vec::bit_xor(first[i], table.lookup(index[i])));
  }

  void keys(const std::byte* lines, int n_blocks, std::byte* images) const {
    using Along = AlongKeys<Vec>;
    for (int lane = 0; lane < 16; lane += n) {
      const std::byte* p = lines + lane * 4;
      std::byte* out = images + lane * 4;
      Before last = before<Along>(pair<kPairs - 1>(p + (n_blocks - 1) * kLines));
      if (mutated(Mutation::kSeam)) last = before<Along>(Vec::izero());
      for (int i = 0; i < n_blocks; ++i, p += kLines, out += kBlockImages * kImage)
        static_for<kPairs>(
            [&](auto j) [[gnu::always_inline]] { expand<Along>(pair<j>(p), last, out + j * 2 * kImage); });
    }
  }

  // Two blocks of 16 dimensions and 32 tokens.
  void values(const std::byte* before_lines, const std::byte* lines, std::byte* images) const {
    using Along = AlongLanes<Vec>;
    static_for<kPairs>([&](auto j) [[gnu::always_inline]] {
      Before last = before<Along>(pair<j>(before_lines + (16 - n) * 4));
      for (int half = 0; half < 2; ++half)
        for (int lane = 0; lane < 16; lane += n)
          expand<Along>(pair<j>(lines + half * kLines + lane * 4), last,
                        images + (half * kBlockImages + j * 2) * kImage + lane * 4);
    });
  }
};

template <typename Vec>
struct TrellisSources {
  static void half_scales(const std::byte* p, int count, float* scales) {
    for (int i = 0; i < count; i += Vec::kN)
      Vec::store(scales + i, Vec::load(reinterpret_cast<const F16*>(p) + i));
  }
  template <int b>
  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable*) {
    const int n_blocks = head_dim / kBlockDims;
    half_scales(region + head_wide_scales(b, head_dim) + group * 64, kGroupKeys, scales);
    TrellisImages<Vec, b>(bias).keys(region + size_t(group * n_blocks) * TrellisImages<Vec, b>::kLines,
                                     n_blocks, images);
  }
  template <int b>
  static void value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
    half_scales(region + head_wide_scales(b, head_dim), kPage, scales);
  }
  template <int b>
  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable*) {
    constexpr int kLines = TrellisImages<Vec, b>::kLines, kSliceLines = 4 * kLines;
    const TrellisImages<Vec, b> vectors(0);
    const std::byte* before =
        region + size_t((d + head_dim - kSlice) % head_dim / kSlice) * kSliceLines + kLines;
    const std::byte* lines = region + size_t(d / kSlice) * kSliceLines;
    for (int half = 0; half < 2; ++half)
      vectors.values(before + half * 2 * kLines, lines + half * 2 * kLines,
                     images + half * 2 * kBlockImages * kImage);
  }

  template <DType type>
  struct Of {
    static constexpr DType kType = type;
    static constexpr int b = trellis_bits(type);
    static constexpr ImageSource kSource{type, 1, b, nullptr, keys<b>, value_scales<b>, values<b>};
    static const ImageSource& get() { return kSource; }
  };
};
}  // namespace
}  // namespace kvasir::cpu
