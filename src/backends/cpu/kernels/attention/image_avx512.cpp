// Trellis types: states from symbols by shifts, levels by byte permutes of a table of 512.
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/striped_image_body.h"
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
    const I symbols = Vec::lanes_before<n>(now, before);
    return up ? _mm512_slli_epi32(symbols, up) : symbols;
  }
};

// All ones in the bytes of x whose bit `bit` is set. On port 0, where a test or a permute needs port 5.
template <int bit>
[[gnu::always_inline]] inline I bytes_of_bit(I x) {
  return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi8(char(1 << bit)), 0);
}

// Levels by permutes of 64 bytes: the low six bits of a state's byte within a quarter of the table.
// Consecutive vectors share what masks they make of the bits above.
template <typename, int b>
struct PermutedLevels {
  static constexpr int kSteps = SharedByte<b>::kSteps;
  I table[kSteps][4];

  explicit PermutedLevels(int bias) {
    for (int i = 0; i < kSteps; ++i) {
      alignas(64) uint8_t bytes[256];
      __builtin_memcpy(bytes, trellis_bytes(b, bias != 0).level[i], sizeof bytes);
      if (mutated(Mutation::kTrellisEntry)) bytes[SharedByte<b>::index(i, 37)] += 3;
      for (int quarter = 0; quarter < 4; ++quarter) table[i][quarter] = Vec::iload(bytes + quarter * kImage);
    }
  }

  // Of the quarters by bit `sixth` and bit `seventh` of a vector.
  template <int sixth, int seventh>
  [[gnu::always_inline]] static I lookup(const I* quarters, I index, I bits) {
    const __mmask64 odd = _mm512_test_epi8_mask(bits, _mm512_set1_epi8(char(1 << sixth)));
    I low = _mm512_permutexvar_epi8(index, quarters[0]), high = _mm512_permutexvar_epi8(index, quarters[2]);
    low = _mm512_mask_permutexvar_epi8(low, odd, index, quarters[1]);
    high = _mm512_mask_permutexvar_epi8(high, odd, index, quarters[3]);
    if constexpr (seventh == 7)
      return _mm512_mask_blend_epi8(_mm512_movepi8_mask(bits), low, high);
    else
      return _mm512_ternarylogic_epi32(bytes_of_bit<seventh>(bits), high, low, 0xca);
  }
  template <int i>
  [[gnu::always_inline]] I level(I before, I now) const {
    if constexpr (b == 2) {
      const I index = i == 3 ? now : Vec::select_bits(uint8_t((4 << 2 * i) - 1), now, before);
      return lookup<6, 7>(table[i], index, i == 3 ? now : before);
    } else if constexpr (b == 3) {
      const I index = i == 1 ? now : Vec::select_bits(0x07, now, before);
      return _mm512_xor_si512(lookup<3 * i, 3 * i + 1>(table[i], index, before),
                              bytes_of_bit<3 * i + 2>(before));
    } else {
      const I index = i == 1 ? now : Vec::select_bits(0x0f, now, before);
      return _mm512_xor_si512(lookup<6, 7>(table[i], index, i == 1 ? now : before),
                              bytes_of_bit<4 * i>(before));
    }
  }
  [[gnu::always_inline]] void expand(I before, I now, std::byte* out, int one, int two) const {
    static_for<kSteps>([&](auto i) [[gnu::always_inline]] {
      Vec::istore(out + i % 2 * one + i / 2 * two, level<i>(before, now));
    });
  }
};

// The levels of half a table by the low bits of `index`.
[[gnu::always_inline]] inline I lookup(const I* table, I index) {
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index),
                                _mm512_permutex2var_epi8(table[0], index, table[1]),
                                _mm512_permutex2var_epi8(table[2], index, table[3]));
}

// tbq3_tcq (kv_page.h): two symbols before each block of 128, and a share of each block and token by which
// its bytes are multiplied (_mm512_mulhrs_epi16 is tcq_byte of image_source.h).
struct TcqVectors {
  using Symbols = ThreeBitSymbols<Vec>;
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
    Symbols::states(along, index);
    const I second = along.template moved<2, 0>();
    for (int i = 0; i < 2; ++i) {
      const __mmask64 first = _mm512_test_epi8_mask(second, _mm512_set1_epi8(i ? 32 : 4));
      out[i] = _mm512_mask_blend_epi8(first, lookup(level, index[i]), lookup(level + 4, index[i]));
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

  void keys(const std::byte* lines, const std::byte* region, int group, int head_dim, std::byte* images,
            const Streams& next) const {
    I before = {}, share[2] = {};
    for (int i = 0; i < head_dim / kBlockDims; ++i, lines += 3 * kImage, images += kBlockImages * kImage) {
      prefetch_half(next, i, 3);
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
      static_for<Symbols::kPairs>([&](auto p) [[gnu::always_inline]] {
        const I now = Symbols::template pair<p>(lines);
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
    static_for<Symbols::kPairs>([&](auto p) [[gnu::always_inline]] {
      I before, even[2], odd[2];
      if (start) {
        const int two[2] = {load_word(reinterpret_cast<const uint8_t*>(start) + 8 * p),
                            load_word(reinterpret_cast<const uint8_t*>(start) + 8 * p + 4)};
        const int second = (two[0] & 0x07070707) | (two[1] & 0x07070707) << 3,
                  last = (two[0] >> 3 & 0x07070707) | (two[1] & 0x38383838);
        before = _mm512_mask_blend_epi32(0x8000, _mm512_set1_epi32(second), _mm512_set1_epi32(last));
      } else {
        before = Symbols::template pair<p>(before_lines);
      }
      for (int i = 0; i < 2; ++i) {
        const int16_t* s = shares + 8 * p + 4 * i;
        even[i] = _mm512_set1_epi32(int(uint16_t(s[0]) | uint32_t(uint16_t(s[2])) << 16));
        odd[i] = _mm512_set1_epi32(int(uint16_t(s[1]) | uint32_t(uint16_t(s[3])) << 16));
      }
      for (int half = 0; half < 2; ++half) {
        const I now = Symbols::template pair<p>(lines + half * 3 * kImage);
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
              const formats::TcqTable* given, const Streams& next) {
  const formats::TcqTable& table = tcq_table(given);
  const TcqBlock<Vec> first(region, head_dim, 0, group * kGroupKeys, kGroupKeys);
  for (int t = 0; t < kGroupKeys; ++t) scales[t] = first.top[t] * table.step;
  const size_t group_bytes = size_t(head_dim / kBlockDims) * 3 * kImage;
  TcqVectors(table, head_dim, bias)
      .keys(region + size_t(group) * group_bytes, region, group, head_dim, images, next);
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

struct TcqVectorSource {
  static constexpr DType kType = DType::tbq3_tcq;
  static constexpr ImageSource kSource{kType, 1, 3, nullptr, tcq_keys, tcq_value_scales, tcq_values};
  static const ImageSource& get() { return kSource; }
};

template <DType type>
using Trellis = std::conditional_t<type == DType::tbq3_tcq, TcqVectorSource,
                                   StripedSources<Vec, PermutedLevels>::Of<type>>;

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
constexpr ImageKernels kImage_avx512 = {image_key_producer<Vec, Trellis>, image_value_producer<Vec, Trellis>,
                                        encode_image_page};

}  // namespace kvasir::cpu
