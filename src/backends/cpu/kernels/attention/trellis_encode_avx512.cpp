// The Viterbi search of trellis.h on vectors of 32 costs: a minimum over the branches into each group, by the
// lowest branch of equals, then a permute that gives every state its group's minimum. What a step keeps is
// one bit a branch and group: set where that branch beat those below it, so that the best branch is the
// highest one set.
#include "backends/cpu/kernels/attention/trellis_encode_avx512.h"

#include <immintrin.h>

#include "backends/cpu/kernels/attention/headwide_encode_body.h"
#include "backends/cpu/kernels/simd/vec_avx512.h"
#include "base/half.h"
#include "formats/trellis_tables.h"

namespace kvasir::cpu {
namespace {

using avx512::Vec;
using I = __m512i;

constexpr int kBefore = 32, kAfter = 16, kAgeing = 16;  // as trellis.h

// 32 accumulators (t % 32) folded 16-8-4-2-1.
float fold(__m512 low, __m512 high) { return Vec::reduce_add(Vec::add(low, high)); }

struct Row {
  alignas(64) float x[kMaxHeadDim];
  alignas(64) float levels[kMaxHeadDim];  // of its states
  alignas(64) int8_t target[kMaxHeadDim];
  uint8_t symbols[kMaxHeadDim];
  bool zero;

  void load(KvSide side, int d, const uint16_t* exact, int token) {
    alignas(64) uint16_t bits[kMaxHeadDim];
    if (side == KvSide::kKey) {
      const uint16_t* from = exact + size_t(token / 32) * size_t(d) * 32 + token % 32;
      for (int i = 0; i < d; ++i) bits[i] = from[i * 32];
    } else {
      for (int i = 0; i < d; i += 32)
        __builtin_memcpy(bits + i, exact + size_t(i) * kPage + size_t(token) * 32, 64);
    }
    for (int i = 0; i < d; i += 16) Vec::store(x + i, Vec::load(reinterpret_cast<const F16*>(bits + i)));
  }

  // Targets of 128 values in steps of a table's largest level / 127.
  void aim_at(float step) {
    const float squares = sum_squares(128);
    zero = squares == 0;
    target_by(128, zero ? 0.0f : 1.0f / step / __builtin_sqrtf(squares));
  }

  void aim(int d) {
    const float mean = sum_squares(d) * (1.0f / float(d));
    zero = mean == 0;
    target_by(d, zero ? 0.0f : formats::kTrellisUnit / __builtin_sqrtf(mean));
  }

  float sum_squares(int d) const {
    __m512 a = Vec::zero(), c = Vec::zero();
    for (int i = 0; i < d; i += 32) {
      const __m512 low = Vec::load(x + i), high = Vec::load(x + i + 16);
      a = Vec::add(a, Vec::mul(low, low));
      c = Vec::add(c, Vec::mul(high, high));
    }
    return fold(a, c);
  }

  void target_by(int d, float to_unit) {
    for (int i = 0; i < d; i += 16) {
      const __m512 v = Vec::mul(Vec::load(x + i), Vec::set1(to_unit));
      const __m512 held = _mm512_min_ps(_mm512_max_ps(v, Vec::set1(-127.0f)), Vec::set1(127.0f));
      _mm_store_si128(reinterpret_cast<__m128i*>(target + i), _mm512_cvtepi32_epi8(Vec::to_int(held)));
    }
  }

  // The scale's bits; a scale of 0 clears the symbols.
  uint16_t finish(int d) {
    const float energy = sum_levels(d, levels), products = sum_levels(d, x);
    const float exact = energy > 0 ? products / energy : 0.0f;
    const float held = exact > 0 ? exact < 65504.0f ? exact : 65504.0f : 0.0f;
    const uint16_t scale = zero ? 0 : f32_to_f16(held);
    if (scale == 0) __builtin_memset(symbols, 0, size_t(d));
    return scale;
  }

  float sum_levels(int d, const float* by) const {
    __m512 a = Vec::zero(), c = Vec::zero();
    for (int i = 0; i < d; i += 32) {
      a = Vec::add(a, Vec::mul(Vec::load(by + i), Vec::load(levels + i)));
      c = Vec::add(c, Vec::mul(Vec::load(by + i + 16), Vec::load(levels + i + 16)));
    }
    return fold(a, c);
  }
};

template <int b>
struct Search {
  static constexpr int kStates = b == 2 ? 256 : 512, kGroups = kStates >> b, kBranches = 1 << b;
  static constexpr int kVectors = kStates / 32, kParts = kGroups / 32;  // of costs, of minima
  static constexpr int kWords = kParts * kBranches;                     // kept a step

  struct Constants {
    alignas(64) int16_t level[kStates];
    alignas(64) uint16_t group[kStates];  // of a state, within its part
    float wide[kStates];
  };
  static constexpr uint16_t group_of(int s) { return uint16_t((s >> b) % 32); }
  static constexpr Constants kConstants = [] {
    Constants c{};
    for (int s = 0; s < kStates; ++s) {
      if constexpr (b == 2)
        c.level[s] = formats::kTrellisTable2.level[s];
      else if constexpr (b == 3)
        c.level[s] = formats::kTrellisTable3.level[s];
      else
        c.level[s] = formats::kTrellisTable4.level[s];
      c.group[s] = group_of(s);
      c.wide[s] = float(c.level[s]);
    }
    return c;
  }();

  // (x - level)^2 of every state, for x from -127 on: cheaper to load than to compute a step.
  static constexpr int kTargets = 255;
  alignas(64) uint16_t squares[kTargets * kStates];
  alignas(64) uint32_t kept[2][kMaxHeadDim * kWords];
  I cost[kVectors];
  const Constants& constants;

  explicit Search(const Constants& of) : constants(of) {
    for (int x = 0; x < kTargets; ++x)
      for (int s = 0; s < kStates; s += 32) {
        const I off = _mm512_sub_epi16(_mm512_set1_epi16(short(x - 127)), Vec::iload(constants.level + s));
        Vec::istore(squares + x * kStates + s, _mm512_mullo_epi16(off, off));
      }
  }

  [[gnu::always_inline]] static void step(I (&cost)[kVectors], const uint16_t* square, uint32_t* keep) {
    I best[kParts];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      best[part] = cost[part];
      keep[part * kBranches] = ~0u;
#pragma GCC unroll 16
      for (int p = 1; p < kBranches; ++p) {
        const I other = cost[p * kParts + part];
        keep[part * kBranches + p] = _mm512_cmplt_epu16_mask(other, best[part]);
        best[part] = _mm512_min_epu16(best[part], other);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const I group =
          _mm512_permutexvar_epi16(Vec::iload(kConstants.group + v * 32), best[v * 32 / kBranches / 32]);
      cost[v] = _mm512_adds_epu16(group, Vec::iload(square + v * 32));
    }
  }

  static void age(I (&cost)[kVectors]) {
    I least = cost[0];
#pragma GCC unroll 16
    for (int v = 1; v < kVectors; ++v) least = _mm512_min_epu16(least, cost[v]);
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64(least, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    least = _mm512_broadcastw_epi16(_mm_minpos_epu16(quarter));
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) cost[v] = _mm512_sub_epi16(cost[v], least);
  }

  // n a multiple of kAgeing.
  void walk(const int8_t* x, int n, uint32_t* keep) {
    I now[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) now[v] = cost[v];
    for (int t = 0; t < n; t += kAgeing) {
      for (int i = 0; i < kAgeing; ++i, keep += kWords) step(now, squares + (x[t + i] + 127) * kStates, keep);
      age(now);
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) cost[v] = now[v];
  }

  static int back(int s, const uint32_t* keep) {
    const int group = s >> b;
    const __m128i up = _mm_cvtsi32_si128(31 - group % 32);
    const uint32_t* words = keep + group / 32 * kBranches;
    unsigned beat;
    if constexpr (b == 4)
      beat = _mm512_movepi32_mask(_mm512_sll_epi32(_mm512_load_si512(words), up));
    else if constexpr (b == 3)
      beat = _mm256_movepi32_mask(
          _mm256_sll_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(words)), up));
    else
      beat = unsigned(_mm_movemask_ps(
          _mm_castsi128_ps(_mm_sll_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(words)), up))));
    return (31 - __builtin_clz(beat)) * kGroups + group;
  }

  // Free ends (trellis.h): the path from any state to the cheapest, of two rows of 128; the states before
  // them.
  void open(Row* rows, int* before) {
    int s[2];
    for (int i = 0; i < 2; ++i) {
      for (I& c : cost) c = Vec::izero();
      walk(rows[i].target, 128, kept[i]);
      s[i] = cheapest();
    }
    for (int t = 127; t >= 0; --t)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        rows[i].symbols[t] = uint8_t(s[i] & (kBranches - 1));
        rows[i].levels[t] = constants.wide[s[i]];
        s[i] = back(s[i], kept[i] + t * kWords);
      }
    for (int i = 0; i < 2; ++i) before[i] = s[i];
  }

  // The lowest of the states of cost 0: ageing has just made the least cost 0.
  int cheapest() const {
    int s = 0;
    for (int v = kVectors - 1; v >= 0; --v)
      if (const uint32_t zero = _mm512_testn_epi16_mask(cost[v], cost[v])) s = v * 32 + __builtin_ctz(zero);
    return s;
  }

  // Costs of every path to the end of the row, and the state it starts and ends in.
  int seam(const int8_t* x, int d, uint32_t* keep) {
    for (I& c : cost) c = Vec::izero();
    walk(x + d - kBefore, kBefore, keep);
    walk(x, kAfter, keep);
    int s = cheapest();
    for (int t = kAfter - 1; t >= 0; --t) s = back(s, keep + t * kWords);
    return s;
  }

  int forward(const int8_t* x, int d, uint32_t* keep) {
    const int start = seam(x, d, keep);
    alignas(64) uint16_t costs[kStates];
    __builtin_memset(costs, 0xff, sizeof costs);
    costs[start] = 0;
    for (int v = 0; v < kVectors; ++v) cost[v] = Vec::iload(costs + v * 32);
    walk(x, d, keep);
    return start;
  }

  // Two rows at once: a path is followed back one load after the other, two paths at the same time.
  void run(Row* rows, int d) {
    int s[2] = {forward(rows[0].target, d, kept[0]), forward(rows[1].target, d, kept[1])};
    for (int t = d - 1; t >= 0; --t)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        rows[i].symbols[t] = uint8_t(s[i] & (kBranches - 1));
        rows[i].levels[t] = constants.wide[s[i]];
        s[i] = back(s[i], kept[i] + t * kWords);
      }
    // The first states hold symbols of the row's end, from wherever costs that saturate let the path begin.
    for (int i = 0; i < 2; ++i) {
      unsigned state = 0;
      for (int t = d - 4; t < d + 4; ++t) {
        state = (state << b | rows[i].symbols[t % d]) & (kStates - 1);
        if (t >= d) rows[i].levels[t - d] = constants.wide[state];
      }
    }
  }
};

// Of token t of a half page of a trellis type, to where its images have them, a block behind the other.
void put_striped(bool key, const uint8_t* symbols, int d, int t, std::byte* images) {
  const int stripes = key ? 4 : 16, run = d / stripes;
  for (int step = 0; step < run; ++step) {
    const int block = key ? step / 8 * 2 + t / 16 : step / 4 * 4 + t / 8;
    const int image = key ? step % 8 : t / 4 % 2 * 4 + step % 4;
    std::byte* at = images + (block * kBlockImages + image) * kImage + (key ? t % 16 * 4 : t % 4);
    for (int i = 0; i < stripes; ++i) at[key ? i : i * 4] = std::byte(symbols[i * run + step]);
  }
}

// Lines of them.
template <int b>
void gather_striped(bool key, int half, int n_blocks, const std::byte* images, std::byte* region) {
  for (int i = 0; i < n_blocks; ++i)
    HeadWideEncoder<Vec, b>::gather_block(
        images + i * kBlockImages * kImage,
        region + size_t(key ? half * n_blocks + i : (i / 4 * 2 + half) * 4 + i % 4) * b * kImage);
}

// Of token t of a half page of tbq3_tcq.
void put_symbols(bool key, const uint8_t* symbols, int d, int t, std::byte* images) {
  for (int at = 0; at < d; at += 4) {
    std::byte* block = images + at / 16 * kBlockImages * kImage;
    if (key)
      __builtin_memcpy(block + (at % 16 / 4 * 2 + t / 16) * kImage + t % 16 * 4, symbols + at, 4);
    else
      for (int i = at; i < at + 4; ++i) block[t / 4 * kImage + i % 16 * 4 + t % 4] = std::byte(symbols[i]);
  }
}

// Lines of half a page of images.
void gather_images(bool key, int half, int n_blocks, const std::byte* images, std::byte* region) {
  for (int i = 0; i < n_blocks; ++i)
    HeadWideEncoder<Vec, 3>::gather_block(
        images + i * kBlockImages * kImage,
        region + size_t(key ? half * n_blocks + i : i / 2 * 4 + half * 2 + i % 2) * 3 * kImage);
}

}  // namespace

template <int b>
void encode_trellis_page(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
  Search<b> search(Search<b>::kConstants);
  Row rows[2];
  const int n_blocks = head_dim / kBlockDims;
  const bool key = side == KvSide::kKey;
  alignas(64) std::byte images[kMaxHeadDim / kBlockDims * kBlockImages * kImage];
  for (int token = 0; token < kPage; token += 2) {
    for (int i = 0; i < 2; ++i) {
      rows[i].load(side, head_dim, reinterpret_cast<const uint16_t*>(exact), token + i);
      rows[i].aim(head_dim);
    }
    search.run(rows, head_dim);
    for (int i = 0; i < 2; ++i) {
      const uint16_t scale = rows[i].finish(head_dim);
      __builtin_memcpy(region + head_wide_scales(b, head_dim) + (token + i) * 2, &scale, sizeof scale);
      put_striped(key, rows[i].symbols, head_dim, (token + i) % 32, images);
    }
    if (token % 32 == 30) gather_striped<b>(key, token / 32, n_blocks, images, region);
  }
}

void encode_tcq_page(KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                     const formats::TcqTable& table) {
  using Tcq = Search<3>;
  Tcq::Constants constants;
  for (int s = 0; s < Tcq::kStates; ++s) {
    constants.level[s] = table.rounded[size_t(s)];
    constants.group[s] = Tcq::group_of(s);
    constants.wide[s] = table.level[size_t(formats::mirrored_state(s))];
  }
  Tcq search(constants);
  Row rows[2], blocks[2];
  const int n_blocks = head_dim / kBlockDims;
  const bool key = side == KvSide::kKey;
  alignas(64) std::byte images[kMaxHeadDim / kBlockDims * kBlockImages * kImage];
  for (int token = 0; token < kPage; token += 2) {
    for (int i = 0; i < 2; ++i)
      rows[i].load(side, head_dim, reinterpret_cast<const uint16_t*>(exact), token + i);
    for (int block = 0; block < head_dim / 128; ++block) {
      int before[2];
      for (int i = 0; i < 2; ++i) {
        __builtin_memcpy(blocks[i].x, rows[i].x + block * 128, 128 * sizeof(float));
        blocks[i].aim_at(table.step);
      }
      search.open(blocks, before);
      std::byte* own = region + tcq_block(head_dim, block);
      for (int i = 0; i < 2; ++i) {
        const uint16_t scale = blocks[i].finish(128);
        __builtin_memcpy(own + (token + i) * 2, &scale, sizeof scale);
        own[kTcqBefore + size_t(token + i)] =
            std::byte(scale == 0 ? 0 : formats::mirrored_state(before[i]) >> 3);
        own[kTcqLast + size_t(token + i)] = std::byte(0);
        __builtin_memcpy(rows[i].symbols + block * 128, blocks[i].symbols, 128);
      }
    }
    for (int i = 0; i < 2; ++i) put_symbols(key, rows[i].symbols, head_dim, (token + i) % 32, images);
    if (token % 32 == 30) gather_images(key, token / 32, n_blocks, images, region);
  }
}

template void encode_trellis_page<2>(KvSide, int, const std::byte*, std::byte*);
template void encode_trellis_page<3>(KvSide, int, const std::byte*, std::byte*);
template void encode_trellis_page<4>(KvSide, int, const std::byte*, std::byte*);

}  // namespace kvasir::cpu
