// Trellis types: states from symbols by shifts, levels by byte permutes of a table of 512.
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/trellis_encode_avx512.h"
#include "backends/cpu/kernels/simd/vec_avx512.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

using avx512::Vec;
using I = __m512i;

template <int b>
struct TrellisVectors {
  static constexpr int kTables = b == 2 ? 2 : 4;  // vectors of the levels whose state starts with a 0
  static constexpr int kLines = b * kImage;
  I table[kTables];

  explicit TrellisVectors(int bias) {
    const TrellisBytes& bytes = trellis_bytes(b, bias != 0);
    for (int i = 0; i < kTables; ++i) table[i] = Vec::iload(bytes.level + i * kImage);
    if (mutated(Mutation::kTrellisEntry))
      table[0] = _mm512_mask_add_epi8(table[0], 1ull << 37, table[0], _mm512_set1_epi8(3));
  }

  struct Lines {
    I line[b];
    explicit Lines(const std::byte* p) {
#pragma GCC unroll 4
      for (int l = 0; l < b; ++l) line[l] = Vec::iload(p + l * kImage);
    }
    template <int z>
    [[gnu::always_inline]] I symbols() const {
      constexpr CodeField field = code_field(b, z);
      I code = line[field.line];
      if constexpr (field.at > 0) code = Vec::template shift_right<field.at>(code);
      if constexpr (field.high_line >= 0) {
        const I high = Vec::template shift_right<field.high_at - field.bits>(line[field.high_line]);
        code = Vec::select_bits((1 << field.bits) - 1, code, high);
      }
      return Vec::bit_and(code, _mm512_set1_epi8((1 << b) - 1));
    }
  };

  // Moves the symbols of `now` n values on, those of `before` first, and up by kUp bits of their byte.
  struct AlongKeys {  // the values of a byte's dword, then of the next vector
    template <int n, int kUp>
    [[gnu::always_inline]] static I moved(I now, I before) {
      return _mm512_shldi_epi32(now, before, 8 * n + kUp);  // symbols are too narrow to reach the next byte
    }
  };
  struct AlongLanes {  // the lanes, then those of the next vector
    template <int n, int kUp>
    [[gnu::always_inline]] static I moved(I now, I before) {
      const I symbols = _mm512_alignr_epi32(now, before, 16 - n);
      return kUp ? _mm512_slli_epi32(symbols, kUp) : symbols;
    }
  };

  // Levels of the states that the symbols of `now` lead to. The table is odd: a state with its first bit set
  // has the complement of the level of the state without it.
  template <typename Along>
  [[gnu::always_inline]] I levels(I now, I before) const {
    const I near = _mm512_or_si512(now, Along::template moved<1, b>(now, before));
    if constexpr (b == 2) {
      const I index = _mm512_ternarylogic_epi32(near, Along::template moved<2, 4>(now, before),
                                                Along::template moved<3, 6>(now, before), 0xfe);
      return complement(_mm512_movepi8_mask(index), _mm512_permutex2var_epi8(table[0], index, table[1]));
    } else {
      I index = near;
      if constexpr (b == 3)  // the lower two bits of the symbol before the last
        index = _mm512_ternarylogic_epi32(near, Along::template moved<2, 6>(now, before),
                                          _mm512_set1_epi8(char(0xc0)), 0xf8);
      const I level = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index),
                                             _mm512_permutex2var_epi8(table[0], index, table[1]),
                                             _mm512_permutex2var_epi8(table[2], index, table[3]));
      const I first_bit = _mm512_set1_epi8(b == 3 ? 4 : 1);
      return complement(_mm512_test_epi8_mask(Along::template moved<2, 0>(now, before), first_bit), level);
    }
  }

  [[gnu::always_inline]] static I complement(__mmask64 where, I level) {
    return _mm512_mask_sub_epi8(level, where, _mm512_set1_epi8(-1), level);
  }

  void keys(const std::byte* lines, int n_blocks, const std::byte* next, std::byte* images) const {
    const Lines last(lines + (n_blocks - 1) * kLines);
    I before[2] = {last.template symbols<6>(), last.template symbols<7>()};
    if (mutated(Mutation::kSeam)) before[0] = before[1] = Vec::izero();
    for (int i = 0; i < n_blocks; ++i, lines += kLines, images += kBlockImages * kImage) {
      for (int l = 0; l < b && next; ++l) __builtin_prefetch(next + (i * b + l) * kImage, 0, 3);
      const Lines block(lines);
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        const I now = block.template symbols<z>(), old = before[z % 2];
        before[z % 2] = now;
        Vec::istore(images + z * kImage, levels<AlongKeys>(now, old));
      });
    }
  }

  // Two blocks of 16 dimensions and 32 tokens.
  void values(const std::byte* before_lines, const std::byte* lines, std::byte* images) const {
    I before[kBlockImages];
    const Lines old(before_lines);
    static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] { before[z] = old.template symbols<z>(); });
    for (int half = 0; half < 2; ++half, lines += kLines, images += kBlockImages * kImage) {
      const Lines block(lines);
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        const I now = block.template symbols<z>();
        Vec::istore(images + z * kImage, levels<AlongLanes>(now, before[z]));
        before[z] = now;
      });
    }
  }
};

void half_scales(const std::byte* p, int n, float* scales) {
  for (int i = 0; i < n; i += Vec::kN) Vec::store(scales + i, Vec::load(reinterpret_cast<const F16*>(p) + i));
}

template <int b>
void trellis_keys(const std::byte* region, int group, int head_dim, int bias, const std::byte* next,
                  std::byte* images, float* scales, const formats::TcqTable*) {
  const int n_blocks = head_dim / kBlockDims;
  const size_t group_bytes = size_t(n_blocks) * TrellisVectors<b>::kLines;
  half_scales(region + head_wide_scales(b, head_dim) + group * 64, 32, scales);
  TrellisVectors<b>(bias).keys(region + size_t(group) * group_bytes, n_blocks,
                               next ? next + (group ? 0 : group_bytes) : nullptr, images);
}

template <int b>
void trellis_value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
  half_scales(region + head_wide_scales(b, head_dim), kPage, scales);
}

template <int b>
void trellis_values(const std::byte* region, int head_dim, int d, int bias, const float*, std::byte* images,
                    const formats::TcqTable*) {
  constexpr int kLines = TrellisVectors<b>::kLines, kSliceLines = 4 * kLines;
  const TrellisVectors<b> vectors(bias);
  const std::byte* before =
      region + size_t((d + head_dim - kSlice) % head_dim / kSlice) * kSliceLines + kLines;
  const std::byte* lines = region + size_t(d / kSlice) * kSliceLines;
  for (int l = 0; l < 4 * b; ++l) __builtin_prefetch(lines + kSliceLines + l * kImage, 0, 3);
  for (int half = 0; half < 2; ++half)
    vectors.values(before + half * 2 * kLines, lines + half * 2 * kLines,
                   images + half * 2 * kBlockImages * kImage);
}

// tbq3_tcq (kv_page.h): two symbols before each block of 128, and a share of each block and token by which
// its bytes are multiplied (_mm512_mulhrs_epi16 is tcq_byte of image_source.h).
struct TcqVectors {
  using Trellis = TrellisVectors<3>;
  using Lines = Trellis::Lines;
  I level[8];
  I flip;  // the bias as an exclusive or
  bool shared;

  TcqVectors(const formats::TcqTable& table, int head_dim, int bias)
      : flip(_mm512_set1_epi8(char(bias))), shared(head_dim > 128) {
    for (int i = 0; i < 8; ++i) level[i] = _mm512_loadu_si512(table.rounded.data() + i * kImage);
  }

  // As TrellisVectors::levels, of a table that need not be odd.
  template <typename Along>
  [[gnu::always_inline]] I levels(I now, I before) const {
    const I near = _mm512_or_si512(now, Along::template moved<1, 3>(now, before));
    const I index = _mm512_ternarylogic_epi32(near, Along::template moved<2, 6>(now, before),
                                              _mm512_set1_epi8(char(0xc0)), 0xf8);
    const __mmask64 first =
        _mm512_test_epi8_mask(Along::template moved<2, 0>(now, before), _mm512_set1_epi8(4));
    return _mm512_mask_blend_epi8(first, lookup256<0>(index), lookup256<4>(index));
  }
  template <int at>
  [[gnu::always_inline]] I lookup256(I index) const {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index),
                                  _mm512_permutex2var_epi8(level[at], index, level[at + 1]),
                                  _mm512_permutex2var_epi8(level[at + 2], index, level[at + 3]));
  }

  // Shares of the even and of the odd bytes, in 16-bit lanes.
  [[gnu::always_inline]] I finish(I bytes, I even, I odd) const {
    if (shared) {
      const I low = _mm512_mulhrs_epi16(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), even);
      const I high = _mm512_mulhrs_epi16(_mm512_srai_epi16(bytes, 8), odd);
      bytes = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, low, _mm512_slli_epi16(high, 8));
    }
    return _mm512_xor_si512(bytes, flip);
  }

  void keys(const std::byte* lines, const std::byte* region, int group, int head_dim, const TcqShares& shares,
            const std::byte* next, std::byte* images) const {
    I before[2] = {}, share[2] = {};
    for (int i = 0; i < head_dim / kBlockDims; ++i, lines += 3 * kImage, images += kBlockImages * kImage) {
      for (int l = 0; l < 3 && next; ++l) __builtin_prefetch(next + (i * 3 + l) * kImage, 0, 3);
      for (int half = 0; i % 8 == 0 && half < 2; ++half) {
        const std::byte* p =
            region + tcq_block(head_dim, i / 8) + kTcqBefore + group * kGroupKeys + half * 16;
        const I two = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const I seven = _mm512_set1_epi32(7);
        before[half] =
            _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(two, seven), 16),
                            _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(two, 3), seven), 24));
        const I words = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&shares.share[i / 8][half * 16])));
        share[half] = _mm512_or_si512(words, _mm512_slli_epi32(words, 16));
      }
      const Lines block(lines);
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        const I now = block.template symbols<z>(), old = before[z % 2];
        before[z % 2] = now;
        const I bytes = levels<Trellis::AlongKeys>(now, old);
        Vec::istore(images + z * kImage, finish(bytes, share[z % 2], share[z % 2]));
      });
    }
  }

  // Two blocks of 16 dimensions and 32 tokens. `start`: their two symbols before, or null when a block of the
  // same 128 stands before, in `before_lines`.
  void values(const std::byte* before_lines, const std::byte* start, const std::byte* lines,
              const int16_t* shares, std::byte* images) const {
    I before[kBlockImages], even[kBlockImages], odd[kBlockImages];
    static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
      if (start) {
        const int two = load_word(reinterpret_cast<const uint8_t*>(start) + 4 * z);
        before[z] = _mm512_mask_blend_epi32(0x8000, _mm512_set1_epi32(two & 0x07070707),
                                            _mm512_set1_epi32(two >> 3 & 0x07070707));
      } else {
        before[z] = Lines(before_lines).template symbols<z>();
      }
      const uint32_t s[4] = {uint16_t(shares[4 * z]), uint16_t(shares[4 * z + 1]),
                             uint16_t(shares[4 * z + 2]), uint16_t(shares[4 * z + 3])};
      even[z] = _mm512_set1_epi32(int(s[0] | s[2] << 16));
      odd[z] = _mm512_set1_epi32(int(s[1] | s[3] << 16));
    });
    for (int half = 0; half < 2; ++half, lines += 3 * kImage, images += kBlockImages * kImage) {
      const Lines block(lines);
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        const I now = block.template symbols<z>();
        const I bytes = levels<Trellis::AlongLanes>(now, before[z]);
        Vec::istore(images + z * kImage, finish(bytes, even[z], odd[z]));
        before[z] = now;
      });
    }
  }
};

void tcq_keys(const std::byte* region, int group, int head_dim, int bias, const std::byte* next,
              std::byte* images, float* scales, const formats::TcqTable* given) {
  const formats::TcqTable& table = tcq_table(given);
  const TcqShares shares(region, head_dim, group * kGroupKeys, kGroupKeys);
  for (int t = 0; t < kGroupKeys; ++t) scales[t] = shares.top[t] * table.step;
  const size_t group_bytes = size_t(head_dim / kBlockDims) * 3 * kImage;
  TcqVectors(table, head_dim, bias)
      .keys(region + size_t(group) * group_bytes, region, group, head_dim, shares,
            next ? next + (group ? 0 : group_bytes) : nullptr, images);
}

void tcq_values(const std::byte* region, int head_dim, int d, int bias, const float*, std::byte* images,
                const formats::TcqTable* given) {
  constexpr int kLines = 3 * kImage, kSliceLines = 4 * kLines;
  const TcqVectors vectors(tcq_table(given), head_dim, bias);
  const TcqShares shares(region, head_dim, 0, kPage);
  const std::byte* lines = region + size_t(d / kSlice) * kSliceLines;
  for (int l = 0; l < 12; ++l) __builtin_prefetch(lines + kSliceLines + l * kImage, 0, 3);
  const std::byte* start = d % 128 ? nullptr : region + tcq_block(head_dim, d / 128) + kTcqBefore;
  for (int half = 0; half < 2; ++half)
    vectors.values(start ? nullptr : lines - kSliceLines + kLines + half * 2 * kLines,
                   start ? start + half * 32 : nullptr, lines + half * 2 * kLines,
                   &shares.share[d / 128][half * 32], images + half * 2 * kBlockImages * kImage);
}

void tcq_value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable* table) {
  image_source(DType::tbq3_tcq)->value_scales(region, head_dim, scales, table);
}

template <DType type>
struct TrellisVectorSource {
  static constexpr DType kType = type;
  static constexpr int kBits = trellis_bits(type);
  static constexpr ImageSource kSource{
      type, 1, nullptr, trellis_keys<kBits>, trellis_value_scales<kBits>, trellis_values<kBits>};
  static const ImageSource& get() { return kSource; }
};

template <>
struct TrellisVectorSource<DType::tbq3_tcq> {
  static constexpr DType kType = DType::tbq3_tcq;
  static constexpr ImageSource kSource{kType, 1, nullptr, tcq_keys, tcq_value_scales, tcq_values};
  static const ImageSource& get() { return kSource; }
};

void encode_image_page(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                       const formats::TcqTable* tcq) {
  switch (type) {
    case DType::tbq2_ht:
      return encode_trellis_page<2>(side, head_dim, exact, region);
    case DType::tbq3_ht:
      return encode_trellis_page<3>(side, head_dim, exact, region);
    case DType::tbq4_ht:
      return encode_trellis_page<4>(side, head_dim, exact, region);
    case DType::tbq3_tcq:
      return encode_tcq_page(side, head_dim, exact, region, tcq_table(tcq));
    default:
      return encode_planar_page<Vec>(type, side, head_dim, exact, region, tcq);
  }
}

}  // namespace

extern const ImageKernels kImage_avx512;
constexpr ImageKernels kImage_avx512 = {image_key_producer<Vec, TrellisVectorSource>,
                                        image_value_producer<Vec, TrellisVectorSource>, encode_image_page};

}  // namespace kvasir::cpu
