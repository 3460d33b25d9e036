// Trellis types: states from symbols by shifts, levels by byte permutes of a table of 512.
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/trellis_encode_avx512.h"
#include "backends/cpu/kernels/attention/trellis_symbols_body.h"
#include "backends/cpu/kernels/simd/vec_avx512.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

using avx512::Vec;
using I = __m512i;

// Moves symbols `n` values on, those of `before` first, and up by `up` bits of their byte; bits of a
// neighbour may follow them.
struct AlongKeys {  // the values of a byte's dword, then of the next vector
  I now, before;
  template <int n, int up>
  [[gnu::always_inline]] I moved() const {
    return _mm512_shldi_epi32(now, before, 8 * n + up);
  }
};
struct AlongLanes {  // the lanes, then those of the next vector
  I now, before;
  template <int n, int up>
  [[gnu::always_inline]] I moved() const {
    const I symbols = _mm512_alignr_epi32(now, before, 16 - n);
    return up ? _mm512_slli_epi32(symbols, up) : symbols;
  }
};

// The levels of half a table by the low bits of `index`: 128, or 256 of them.
template <int kTables>
[[gnu::always_inline]] inline I lookup(const I* table, I index) {
  const I low = _mm512_permutex2var_epi8(table[0], index, table[1]);
  if constexpr (kTables == 2) return low;
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low,
                                _mm512_permutex2var_epi8(table[2], index, table[3]));
}

template <int b>
struct TrellisVectors : TrellisSymbols<Vec, b> {
  using Symbols = TrellisSymbols<Vec, b>;
  using Symbols::kLines, Symbols::kPairs, Symbols::two_symbols, Symbols::three_symbols;
  using typename Symbols::Before;
  static constexpr int kTables = b == 2 ? 2 : 4;  // vectors of the levels whose state starts with a 0
  I table[kTables];

  explicit TrellisVectors(int bias) {
    const TrellisBytes& bytes = trellis_bytes(b, bias != 0);
    for (int i = 0; i < kTables; ++i) table[i] = Vec::iload(bytes.level + i * kImage);
    if (mutated(Mutation::kTrellisEntry))
      table[0] = _mm512_mask_add_epi8(table[0], 1ull << 37, table[0], _mm512_set1_epi8(3));
  }

  // Levels of the states that a pair's symbols lead to. The table is odd: a state with its first bit set has
  // the complement of the level of the state without it.
  template <typename Along>
  [[gnu::always_inline]] void expand(I now, Before& before, std::byte* images) const {
    const Along along{now, before.symbols};
    I index[2];
    __mmask64 first[2];
    if constexpr (b == 3)
      three_symbols(along, index);
    else
      two_symbols(along, index);
    if constexpr (b == 2) {
      for (int i = 0; i < 2; ++i) {
        const I old = before.two[i];
        before.two[i] = index[i];
        index[i] = Vec::select_bits(0x0f, index[i], Along{index[i], old}.template moved<2, 4>());
        first[i] = _mm512_movepi8_mask(index[i]);
      }
    } else {
      const I second = along.template moved<2, 0>();
      first[0] = _mm512_test_epi8_mask(second, _mm512_set1_epi8(b == 3 ? 4 : 1));
      first[1] = _mm512_test_epi8_mask(second, _mm512_set1_epi8(b == 3 ? 32 : 16));
    }
    before.symbols = now;
    for (int i = 0; i < 2; ++i) {
      const I level = lookup<kTables>(table, index[i]);
      Vec::istore(images + i * kImage, _mm512_mask_sub_epi8(level, first[i], _mm512_set1_epi8(-1), level));
    }
  }

  void keys(const std::byte* lines, int n_blocks, std::byte* images) const {
    Before last = Symbols::template before<AlongKeys>(
        Symbols::template pair<kPairs - 1>(lines + (n_blocks - 1) * kLines));
    if (mutated(Mutation::kSeam)) last = Symbols::template before<AlongKeys>(Vec::izero());
    for (int i = 0; i < n_blocks; ++i, lines += kLines, images += kBlockImages * kImage) {
      static_for<kPairs>([&](auto p) [[gnu::always_inline]] {
        expand<AlongKeys>(Symbols::template pair<p>(lines), last, images + p * 2 * kImage);
      });
    }
  }

  // Two blocks of 16 dimensions and 32 tokens.
  void values(const std::byte* before_lines, const std::byte* lines, std::byte* images) const {
    static_for<kPairs>([&](auto p) [[gnu::always_inline]] {
      Before last = Symbols::template before<AlongLanes>(Symbols::template pair<p>(before_lines));
      for (int half = 0; half < 2; ++half)
        expand<AlongLanes>(Symbols::template pair<p>(lines + half * kLines), last,
                           images + (half * kBlockImages + p * 2) * kImage);
    });
  }
};

void half_scales(const std::byte* p, int n, float* scales) {
  for (int i = 0; i < n; i += Vec::kN) Vec::store(scales + i, Vec::load(reinterpret_cast<const F16*>(p) + i));
}

template <int b>
void trellis_keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                  float* scales, const formats::TcqTable*) {
  const int n_blocks = head_dim / kBlockDims;
  const size_t group_bytes = size_t(n_blocks) * TrellisVectors<b>::kLines;
  half_scales(region + head_wide_scales(b, head_dim) + group * 64, 32, scales);
  TrellisVectors<b>(bias).keys(region + size_t(group) * group_bytes, n_blocks, images);
}

template <int b>
void trellis_value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
  half_scales(region + head_wide_scales(b, head_dim), kPage, scales);
}

template <int b>
void trellis_values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                    const formats::TcqTable*) {
  constexpr int kLines = TrellisVectors<b>::kLines, kSliceLines = 4 * kLines;
  const TrellisVectors<b> vectors(0);
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
  I level[8];
  I flip;  // the bias as an exclusive or
  bool shared;

  TcqVectors(const formats::TcqTable& table, int head_dim, int bias)
      : flip(_mm512_set1_epi8(char(bias))), shared(head_dim > 128) {
    for (int i = 0; i < 8; ++i) level[i] = _mm512_loadu_si512(table.rounded.data() + i * kImage);
  }

  // As TrellisVectors::expand, of a table that need not be odd; before their bias and share.
  template <typename Along>
  [[gnu::always_inline]] void levels(I now, I before, I (&out)[2]) const {
    const Along along{now, before};
    I index[2];
    Trellis::three_symbols(along, index);
    const I second = along.template moved<2, 0>();
    for (int i = 0; i < 2; ++i) {
      const __mmask64 first = _mm512_test_epi8_mask(second, _mm512_set1_epi8(i ? 32 : 4));
      out[i] = _mm512_mask_blend_epi8(first, lookup<4>(level, index[i]), lookup<4>(level + 4, index[i]));
    }
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

  void keys(const std::byte* lines, const std::byte* region, int group, int head_dim,
            std::byte* images) const {
    I before = {}, share[2] = {};
    for (int i = 0; i < head_dim / kBlockDims; ++i, lines += 3 * kImage, images += kBlockImages * kImage) {
      if (i % 8 == 0) {
        before = Vec::izero();
        const TcqBlock<Vec> shares(region, head_dim, i / 8, group * kGroupKeys, kGroupKeys);
        for (int half = 0; half < 2; ++half) {
          const std::byte* p =
              region + tcq_block(head_dim, i / 8) + kTcqBefore + group * kGroupKeys + half * 16;
          before = _mm512_or_si512(before, _mm512_slli_epi32(two_before(p), 3 * half));
          const I words = _mm512_cvtepu16_epi32(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&shares.share[half * 16])));
          share[half] = _mm512_or_si512(words, _mm512_slli_epi32(words, 16));
        }
      }
      static_for<Trellis::kPairs>([&](auto p) [[gnu::always_inline]] {
        const I now = Trellis::template pair<p>(lines);
        I bytes[2];
        levels<AlongKeys>(now, before, bytes);
        before = now;
        for (int half = 0; half < 2; ++half)
          Vec::istore(images + (p * 2 + half) * kImage, finish(bytes[half], share[half], share[half]));
      });
    }
  }

  // The two symbols before the first of 16 keys, in the upper bytes of their lanes.
  static I two_before(const std::byte* p) {
    const I two = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I seven = _mm512_set1_epi32(7);
    return _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(two, seven), 16),
                           _mm512_slli_epi32(_mm512_and_si512(_mm512_srli_epi32(two, 3), seven), 24));
  }

  // Two blocks of 16 dimensions and 32 tokens. `start`: their two symbols before, or null when a block of the
  // same 128 stands before, in `before_lines`.
  void values(const std::byte* before_lines, const std::byte* start, const std::byte* lines,
              const int16_t* shares, std::byte* images) const {
    static_for<Trellis::kPairs>([&](auto p) [[gnu::always_inline]] {
      I before, even[2], odd[2];
      if (start) {
        const int two[2] = {load_word(reinterpret_cast<const uint8_t*>(start) + 8 * p),
                            load_word(reinterpret_cast<const uint8_t*>(start) + 8 * p + 4)};
        const int second = (two[0] & 0x07070707) | (two[1] & 0x07070707) << 3,
                  last = (two[0] >> 3 & 0x07070707) | (two[1] & 0x38383838);
        before = _mm512_mask_blend_epi32(0x8000, _mm512_set1_epi32(second), _mm512_set1_epi32(last));
      } else {
        before = Trellis::template pair<p>(before_lines);
      }
      for (int i = 0; i < 2; ++i) {
        const int16_t* s = shares + 8 * p + 4 * i;
        even[i] = _mm512_set1_epi32(int(uint16_t(s[0]) | uint32_t(uint16_t(s[2])) << 16));
        odd[i] = _mm512_set1_epi32(int(uint16_t(s[1]) | uint32_t(uint16_t(s[3])) << 16));
      }
      for (int half = 0; half < 2; ++half) {
        const I now = Trellis::template pair<p>(lines + half * 3 * kImage);
        I bytes[2];
        levels<AlongLanes>(now, before, bytes);
        before = now;
        for (int i = 0; i < 2; ++i)
          Vec::istore(images + (half * kBlockImages + p * 2 + i) * kImage, finish(bytes[i], even[i], odd[i]));
      }
    });
  }
};

void tcq_keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images, float* scales,
              const formats::TcqTable* given) {
  const formats::TcqTable& table = tcq_table(given);
  const TcqBlock<Vec> first(region, head_dim, 0, group * kGroupKeys, kGroupKeys);
  for (int t = 0; t < kGroupKeys; ++t) scales[t] = first.top[t] * table.step;
  const size_t group_bytes = size_t(head_dim / kBlockDims) * 3 * kImage;
  TcqVectors(table, head_dim, bias)
      .keys(region + size_t(group) * group_bytes, region, group, head_dim, images);
}

void tcq_values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                const formats::TcqTable* given) {
  constexpr int kLines = 3 * kImage, kSliceLines = 4 * kLines;
  const TcqVectors vectors(tcq_table(given), head_dim, 0);
  const TcqBlock<Vec> shares(region, head_dim, d / 128, 0, kPage);
  const std::byte* lines = region + size_t(d / kSlice) * kSliceLines;
  for (int l = 0; l < 12; ++l) __builtin_prefetch(lines + kSliceLines + l * kImage, 0, 3);
  const std::byte* start = d % 128 ? nullptr : region + tcq_block(head_dim, d / 128) + kTcqBefore;
  for (int half = 0; half < 2; ++half)
    vectors.values(start ? nullptr : lines - kSliceLines + kLines + half * 2 * kLines,
                   start ? start + half * 32 : nullptr, lines + half * 2 * kLines, &shares.share[half * 32],
                   images + half * 2 * kBlockImages * kImage);
}

void tcq_value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable* table) {
  const TcqBlock<Vec> first(region, head_dim, 0, 0, kPage);
  for (int t = 0; t < kPage; ++t) scales[t] = first.top[t] * tcq_table(table).step;
}

template <DType type>
struct TrellisVectorSource {
  static constexpr DType kType = type;
  static constexpr int kBits = trellis_bits(type);
  static constexpr ImageSource kSource{
      type, 1, kBits, nullptr, trellis_keys<kBits>, trellis_value_scales<kBits>, trellis_values<kBits>};
  static const ImageSource& get() { return kSource; }
};

template <>
struct TrellisVectorSource<DType::tbq3_tcq> {
  static constexpr DType kType = DType::tbq3_tcq;
  static constexpr ImageSource kSource{kType, 1, 3, nullptr, tcq_keys, tcq_value_scales, tcq_values};
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
