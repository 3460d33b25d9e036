// What the warps of decode.cu share: the room of a block, a warp's place, the tiles of a team, the exchange
// of scores and weights, and the sums that a block leaves.
#pragma once
#include <algorithm>

#include "backends/cuda/kernels/attention/decode.h"
#include "backends/cuda/kernels/attention/slices.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;
constexpr uint32_t kReserved = 1024;  // of shared memory, by the system, in front of a block's own

// Shared memory by its own addresses: what teams exchange, a table a type, a ring of slots a warp. A table of
// rows lies at a multiple of its size; rings fill the room before and behind it.
constexpr int kExchange = 28672, kWideExchange = 32768;  // with weights in two terms
constexpr int kSharedBytes = 229376;                     // up to this address, whatever the types
static_assert(kSharedBytes <= 232448);

// The types of a pass: known when compiled, or read from the arguments.
template <KvForm kKeys, KvForm kValues>
struct Known {
  static constexpr bool kFixed = true;
  static constexpr KvForm k = kKeys, v = kValues;
};
struct Read {
  static constexpr bool kFixed = false;
  KvForm k, v;
};

template <typename Forms>
constexpr KvForm known_form() {
  if constexpr (Forms::kFixed)
    return Forms::k;
  else
    return KvForm::kTbq4H;
}

// Of a pass, in bf16 terms.
template <typename Forms>
constexpr int terms_of() {
  if constexpr (Forms::kFixed)
    return query_terms(Forms::k);
  else
    return 1;
}

struct Shared {
  uint32_t exchange, k_table, v_table, front, back;
  int n_front, ring;
  __device__ __forceinline__ uint32_t ring_of(int warp) const {
    return warp < n_front ? front + warp * ring : back + (warp - n_front) * ring;
  }
};
template <typename Forms>
__device__ __forceinline__ Shared lay_out(const void* memory, const Forms& forms) {
  Shared s;
  s.exchange = shared_address(memory);
  s.front = s.exchange + (terms_of<Forms>() == 2 ? kWideExchange : kExchange);
  s.n_front = 0;
  const int k = table_bytes(forms.k), v = forms.v == forms.k ? 0 : table_bytes(forms.v);
  if (!Forms::kFixed) {
    // One table or two, each at a multiple of the largest.
    s.ring = k && v ? 4096 : 8192;
    s.n_front = k && v ? 8 : 4;
    s.k_table = s.v_table = 65536;
    if (k && v) s.v_table = 131072;
    s.back = s.v_table + 65536;
  } else if (k == 65536) {
    s.ring = 8192, s.n_front = 4;
    s.k_table = s.v_table = 65536;
    s.back = 131072;
  } else {
    s.k_table = s.v_table = k ? (s.front + k - 1) / k * k : s.front;
    s.back = s.k_table + k;
    s.ring = k ? 10240 : 12288;
  }
  return s;
}
constexpr bool fits(uint32_t base, int front, int table_at, int tables, int back) {
  return base + kExchange + uint32_t(front) <= uint32_t(table_at) && table_at + tables + back <= kSharedBytes;
}
static_assert(fits(kReserved, 4 * 8192, 65536, 65536, 12 * 8192) &&
              fits(kReserved, 8 * 4096, 65536, 131072, 8 * 4096) &&
              fits(kReserved, 0, 32768, 32768, 163840) &&
              kReserved + kExchange + 16 * 12288 <= kSharedBytes &&
              kWideExchange + 16 * 12288 <= kSharedBytes);

// Slices that a warp has on their way or in use.
constexpr int slots_of(KvForm form, int ring, int team) {
  const int bytes = form == KvForm::kF16      ? 4096
                    : form == KvForm::kBf16   ? 4096
                    : form == KvForm::kF32    ? 8192
                    : form == KvForm::kQ8_0   ? Slice<KvForm::kQ8_0>::kBytes
                    : form == KvForm::kQ5_0   ? Slice<KvForm::kQ5_0>::kBytes
                    : form == KvForm::kQ4_0   ? Slice<KvForm::kQ4_0>::kBytes
                    : form == KvForm::kTbq3_0 ? Slice<KvForm::kTbq3_0>::kBytes
                    : form == KvForm::kTbq4_0 ? Slice<KvForm::kTbq4_0>::kBytes
                    : form == KvForm::kTbq2H  ? Slice<KvForm::kTbq2H>::kBytes
                    : form == KvForm::kTbq3H  ? Slice<KvForm::kTbq3H>::kBytes
                    : form == KvForm::kTbq4H  ? Slice<KvForm::kTbq4H>::kBytes
                    : form == KvForm::kTbq2Ht ? Slice<KvForm::kTbq2Ht>::kBytes
                    : form == KvForm::kTbq3Ht ? Slice<KvForm::kTbq3Ht>::kBytes
                                              : Slice<KvForm::kTbq4Ht>::kBytes;
  return std::min(2 * team, ring / bytes);
}

__device__ __forceinline__ void store_shared(uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared2(uint32_t at, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_shared4(uint32_t at, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
__device__ __forceinline__ float load_float(uint32_t at) { return __uint_as_float(load_shared(at)); }

// Within 2^-22 of 1, which is what a score is off by in units of the cap.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1.0f - __fdividef(2.0f, exp2_fast(x * (2 * kLog2E)) + 1.0f);
}

// One warp's place in its block, and the row.
template <int D, int kTermCount = 1>
struct Warp {
  static constexpr int kTeam = D / kChunkDims, kTeams = kWarps / kTeam, kTerms = kTermCount;
  static constexpr int kWeights = 256 * kTerms;  // bytes, of 16 keys and 8 heads
  const AttentionArgs& a;
  const StepView& step;
  Shared shared;
  int pos, seq, shift, keep_pages;  // of the row and its sequence
  int lane, team, part;             // part: which 128 values, and whose weights it finds
  int kv_head, first_head, n_heads, first_pos, out_row;
  int active, unit;  // blocks of the launch that take keys; runs of 16 keys of a small tile
  const int32_t *table, *exact_table;

  __device__ __forceinline__ bool reads_exact(int page) const {
    const int query_page = pos / kPage;
    if (!open_page(a.kv.k_form) && !open_page(a.kv.v_form)) return false;
    if (page != query_page && page >= a.kv.exact_first && query_page - page > a.kv.exact_last) return false;
    return exact_table[page] >= 0;
  }
  // Shares of the scores of 16 keys over other warps' values; then weights of those keys.
  static constexpr int kShares = kTeam * (kTeam - 1) * 512;
  __device__ __forceinline__ uint32_t exchange() const {
    return shared.exchange + team * (kShares + kTeam * kWeights);
  }
  // Of a chunk's keys, over the values of the n-th warp (from 0) after the one whose keys they are.
  __device__ __forceinline__ uint32_t share_at(int chunk, int n) const {
    return exchange() + (chunk * (kTeam - 1) + n) * 512 + lane * 16;
  }
  __device__ __forceinline__ uint32_t weights_at(int chunk) const {
    return exchange() + kShares + chunk * kWeights;
  }
  __device__ __forceinline__ void meet() const {
    if constexpr (kTeam == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "r"(kTeam * 32) : "memory");
  }
  // And whether any lane of the team says so.
  __device__ __forceinline__ bool meet_any(bool mine) const {
    if constexpr (kTeam == 1) {
      const bool any = __any_sync(~0u, mine);  // a vote alone orders no memory
      __syncwarp();
      return any;
    } else {
      int any;
      asm volatile(
          "{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.s32 %0, 1, 0, "
          "q;\n}"
          : "=r"(any)
          : "r"(int(mine)), "r"(1 + team), "r"(kTeam * 32)
          : "memory");
      return any;
    }
  }
};
static_assert(Warp<512>::kTeams * (Warp<512>::kShares + 4 * 256) <= kExchange &&
              Warp<512>::kTeams * (Warp<512>::kShares + 4 * 512) <= kWideExchange);

// The queries' values that are this warp's, in f16 or bf16, as right operands: straight from memory, where
// lanes that read at once are rows apart.
template <int D, int kTerms>
__device__ __forceinline__ void load_queries(const Warp<D, kTerms>& warp, bool shifted,
                                             uint32_t (&q)[8 * kTerms][2]) {
  const int head = warp.lane / 4;
  const float* from = (shifted ? warp.a.q_shifted : warp.a.q) +
                      (int64_t(warp.out_row) * warp.a.n_head + warp.first_head + head) * D +
                      warp.part * kChunkDims + warp.lane % 4 * 32;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float4 x = {0, 0, 0, 0};
    if (head < warp.n_heads) x = reinterpret_cast<const float4*>(from)[i];
    if constexpr (kTerms == 2) {
      q[i][0] = bf16_pair(x.x, x.y), q[i][1] = bf16_pair(x.z, x.w);
      q[8 + i][0] = bf16_rest(q[i][0], x.x, x.y), q[8 + i][1] = bf16_rest(q[i][1], x.z, x.w);
    } else {
      q[i][0] = as_word(__floats2half2_rn(x.x, x.y)), q[i][1] = as_word(__floats2half2_rn(x.z, x.w));
    }
  }
}

// The same at the start, when all warps come: rows in f16 to shared memory first (warps of all teams need the
// same values, and 32 lanes in 32 rows take the cache 32 turns). Piece p of 16 bytes of row r lies where
// lanes that read at once meet no bank twice.
template <int D>
__device__ __forceinline__ void share_queries(const Warp<D>& warp, uint32_t (&q)[8][2]) {
  const auto place = [&](int r, int p) {
    return warp.shared.exchange + r * (2 * D) + (p ^ (p >> 3 & 1) ^ (r & 1) << 1) * 16;
  };
  const float4* from = reinterpret_cast<const float4*>(
      warp.a.q + (int64_t(warp.out_row) * warp.a.n_head + warp.first_head) * D);
  constexpr int kPieces = kDecodeHeads * D / 4, kEach = (kPieces + kThreads - 1) / kThreads;
  float4 x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = int(threadIdx.x) + i * kThreads;
    x[i] = {0, 0, 0, 0};
    if (at < warp.n_heads * (D / 4)) x[i] = from[at];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = int(threadIdx.x) + i * kThreads, r = at / (D / 4), c = at % (D / 4);
    if (at < kPieces)
      store_shared2(place(r, c / 2) + c % 2 * 8, as_word(__floats2half2_rn(x[i].x, x[i].y)),
                    as_word(__floats2half2_rn(x[i].z, x[i].w)));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 v = load_shared4(place(warp.lane / 4, warp.part * 16 + warp.lane % 4 * 4 + i));
    q[2 * i][0] = v.x, q[2 * i][1] = v.y, q[2 * i + 1][0] = v.z, q[2 * i + 1][1] = v.w;
  }
  __syncthreads();  // scores will lie there
}

// Sums of a warp: values 16 g + 2 j, + 1 of its 128 for heads 2 t, 2 t + 1. Weights are relative to 2^peak
// and, times the scale of a value, in units; both follow what is met only when it leaves a range, so that
// most tiles need no common maximum.
struct Sums {
  float out[8][4] = {};
  float peak[2] = {-1e30f, -1e30f}, total[2] = {0, 0}, unit = 0x1p-24f;
};
constexpr float kHeadroom = 6;  // powers of two: weights stay below 2^13, and f16 holds 2^15

// Scores of this warp's 16 keys (rows g, g + 8; heads 2 t, 2 t + 1) to weights of the whole team.
template <int D, int kTerms>
__device__ __forceinline__ void weigh(const Warp<D, kTerms>& warp, const float (&x)[4],
                                      const float (&scale)[2], Sums& sums) {
  constexpr int kTeam = Warp<D>::kTeam;
  const int g = warp.lane / 4, t = warp.lane % 4;
  const uint32_t mine = warp.weights_at(warp.part),
                 to = mine + t * 64 * kTerms + g % 4 * 8 * kTerms + g / 4 * 4;
  float p[4];
  const auto leave = [&] {
    const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(sums.unit));  // of a power of two
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = exp2_fast(x[i] - sums.peak[i % 2]);
    const float first = scale[0] * inverse, second = scale[1] * inverse;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float x = p[e] * first, y = p[2 + e] * second;
      if constexpr (kTerms == 2) {
        const uint32_t pair = bf16_pair(x, y);
        store_shared(to + e * 64, pair), store_shared(to + e * 64 + 8, bf16_rest(pair, x, y));
      } else {
        store_shared(to + e * 32, as_word(__floats2half2_rn(x, y)));
      }
    }
  };
  leave();
  const float top = fmaxf(fabsf(scale[0]), fabsf(scale[1]));
  const bool beyond = fmaxf(x[0], x[2]) > sums.peak[0] + kHeadroom ||
                      fmaxf(x[1], x[3]) > sums.peak[1] + kHeadroom || top > sums.unit * 64;
  if (warp.meet_any(beyond)) {
    float most[3] = {fmaxf(x[0], x[2]), fmaxf(x[1], x[3]), top};
#pragma unroll
    for (int o = 4; o < 32; o *= 2)
#pragma unroll
      for (int i = 0; i < 3; ++i) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], o));
    if (g == 0) {
      store_shared(mine + t * 8, most[0]);
      store_shared(mine + t * 8 + 4, most[1]);
      if (t == 0) store_shared(mine + 32, most[2]);
    }
    warp.meet();
    float next[2] = {sums.peak[0], sums.peak[1]}, next_unit = sums.unit;
#pragma unroll
    for (int c = 0; c < kTeam; ++c) {
      const uint32_t at = warp.weights_at(c);
      next[0] = fmaxf(next[0], load_float(at + t * 8)), next[1] = fmaxf(next[1], load_float(at + t * 8 + 4));
      next_unit = fmaxf(next_unit, __uint_as_float(load_shared(at + 32) & 0x7f800000u));
    }
    warp.meet();
    const float same = sums.unit * __uint_as_float(0x7f000000u - __float_as_uint(next_unit));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float keep = exp2_fast(sums.peak[e] - next[e]);
      sums.total[e] *= keep;
#pragma unroll
      for (int j = 0; j < 8; ++j) sums.out[j][e] *= keep * same, sums.out[j][2 + e] *= keep * same;
      sums.peak[e] = next[e];
    }
    sums.unit = next_unit;
    leave();
    warp.meet();
  }
  sums.total[0] += p[0] + p[2], sums.total[1] += p[1] + p[3];
}

// The tiles of a pass, in the order a team takes them, count() times 16 keys each.
template <int D, bool kExact, bool kSmall = false>
struct Tiles;
// Pages that are read encoded (or are what they are): every so many tiles, those of exact pages left out.
// Small: where whole ones do not keep all teams busy.
template <int D, bool kSmall>
struct Tiles<D, false, kSmall> {
  static constexpr int kChunks = Warp<D>::kTeam;
  int tile, end, stride, keys;
  __device__ __forceinline__ Tiles(const auto& warp, int split)
      : keys((kSmall ? warp.unit : kChunks) * kChunkKeys) {
    tile = warp.first_pos / keys + warp.team * warp.active + split;
    end = split < warp.active ? warp.pos / keys + 1 : 0;
    stride = Warp<D>::kTeams * warp.active;
    settle(warp);
  }
  __device__ __forceinline__ void settle(const auto& warp) {
    while (tile < end && warp.reads_exact(page())) tile += stride;
  }
  __device__ __forceinline__ bool more() const { return tile < end; }
  __device__ __forceinline__ void next(const auto& warp) { tile += stride, settle(warp); }
  __device__ __forceinline__ int count() const { return kSmall ? keys / kChunkKeys : kChunks; }
  __device__ __forceinline__ int first_key() const { return tile * (kSmall ? keys : kChunks * kChunkKeys); }
  __device__ __forceinline__ int page() const { return first_key() / kPage; }
};
// Exact pages, few: 16 keys at a time, dealt from the last team of the last part back, which most often have
// least to do.
template <int D>
struct Tiles<D, true, false> {
  static constexpr int kChunks = 1, kEach = kPage / kChunkKeys;
  int index, end, stride, n_first, from_last, at_page = 0;
  static __device__ __forceinline__ int first_of_last(const auto& warp) {
    return max(warp.pos / kPage - warp.a.kv.exact_last, warp.first_pos / kPage);
  }
  static __device__ __forceinline__ int count_first(const auto& warp) {
    return max(min(warp.a.kv.exact_first, first_of_last(warp)) - warp.first_pos / kPage, 0);
  }
  static __device__ __forceinline__ int count_all(const auto& warp) {
    return (count_first(warp) + warp.pos / kPage + 1 - first_of_last(warp)) * kEach;
  }
  __device__ __forceinline__ Tiles(const auto& warp, int split) {
    from_last = first_of_last(warp), n_first = count_first(warp);
    end = split < warp.active ? count_all(warp) : 0;
    stride = Warp<D>::kTeams * warp.active;
    index = (Warp<D>::kTeams - 1 - warp.team) * warp.active + (warp.active - 1 - split);
    settle(warp);
  }
  __device__ __forceinline__ void settle(const auto& warp) {
    while (index < end && !(warp.reads_exact(page_of(warp)) && seen(warp))) index += stride;
    at_page = index < end ? page_of(warp) : 0;
  }
  __device__ __forceinline__ int page_of(const auto& warp) const {
    const int i = index / kEach;
    return i < n_first ? warp.first_pos / kPage + i : from_last + i - n_first;
  }
  __device__ __forceinline__ bool seen(const auto& warp) const {
    const int key = page_of(warp) * kPage + index % kEach * kChunkKeys;
    return key <= warp.pos && key + kChunkKeys > warp.first_pos;
  }
  __device__ __forceinline__ bool more() const { return index < end; }
  static __device__ __forceinline__ int count() { return 1; }
  __device__ __forceinline__ void next(const auto& warp) { index += stride, settle(warp); }
  __device__ __forceinline__ int first_key() const { return at_page * kPage + index % kEach * kChunkKeys; }
  __device__ __forceinline__ int page() const { return at_page; }
};

// Weights of this warp's keys of a tile from its own share of their scores and the team's. `scale`: as
// load_scale() left it, where kLoaded; else of all keys and values.
template <int D, bool kLoaded, int kTerms>
__device__ __forceinline__ void weigh_tile(const Warp<D, kTerms>& warp, const auto& tile,
                                           const float (&own)[4], uint32_t scale, Sums& sums) {
  constexpr int kTeam = Warp<D>::kTeam;
  const AttentionArgs& a = warp.a;
  float x[4], weight[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = own[i];
  if (kTeam > 1) {
    warp.meet();
#pragma unroll
    for (int n = 0; n < kTeam - 1; ++n) {
      const uint4 share = load_shared4(warp.share_at(warp.part, n));
      x[0] += __uint_as_float(share.x), x[1] += __uint_as_float(share.y);
      x[2] += __uint_as_float(share.z), x[3] += __uint_as_float(share.w);
    }
  }
  float scales[4];  // of this lane's keys, then of their values
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = kLoaded ? __shfl_sync(~0u, scale, (warp.lane & ~3) + i) : scale;
    scales[i] = __half2float(__ushort_as_half(uint16_t(bits)));
  }
  const int key = tile.first_key() + warp.part * kChunkKeys + warp.lane / 4;
  const float unit = a.softcap > 0 ? __fdividef(a.scale, a.softcap) : a.scale * kLog2E;
#pragma unroll
  for (int e = 0; e < 4; ++e) x[e] *= scales[e / 2] * unit;
  if (a.softcap > 0)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = a.softcap * kLog2E * tanh_fast(x[e]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pos = key + 8 * i;
    const bool seen = pos >= warp.first_pos && pos <= warp.pos && warp.part < tile.count();
    weight[i] = seen ? scales[2 + i] : 0.0f;
    x[2 * i] = seen ? x[2 * i] : -INFINITY;
    x[2 * i + 1] = seen ? x[2 * i + 1] : -INFINITY;
  }
  weigh(warp, x, weight, sums);
}

// Sums of the teams, in order, to this block's part of every head.
template <int D, int kTerms>
__device__ __forceinline__ void leave_parts(const Warp<D, kTerms>& warp, int64_t first_part,
                                            const Sums& sums) {
  constexpr int kTeams = Warp<D>::kTeams, kTeam = Warp<D>::kTeam, kStat = kDecodeHeads * 4;
  const AttentionArgs& a = warp.a;
  // Of every warp its totals; of every team peaks and units; then factors and weights of every team.
  const uint32_t totals = warp.shared.exchange, stats = totals + kWarps * kStat,
                 factors = stats + kTeams * 2 * kStat, weights = factors + kTeams * kStat;
  float total[2] = {sums.total[0], sums.total[1]};
#pragma unroll
  for (int o = 4; o < 32; o *= 2)
#pragma unroll
    for (int e = 0; e < 2; ++e) total[e] += __shfl_xor_sync(~0u, total[e], o);
  __syncthreads();  // exchanges and slots have been read
  const int index = warp.team * kTeam + warp.part;
  const uint32_t mine = warp.shared.ring_of(index) + warp.lane * 16;
#pragma unroll
  for (int j = 0; j < 8; ++j) store_shared4(mine + j * 512, sums.out[j]);
  if (warp.lane < 4)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t head = (2 * warp.lane + e) * 4;
      store_shared(totals + index * kStat + head, total[e]);
      store_shared(stats + warp.team * 2 * kStat + head, sums.peak[e]);
      store_shared(stats + (warp.team * 2 + 1) * kStat + head, sums.unit);
    }
  __syncthreads();
  const int thread = int(threadIdx.x);
  const auto most_of = [&](int head) {
    float most = -1e30f;
#pragma unroll
    for (int i = 0; i < kTeams; ++i) most = fmaxf(most, load_float(stats + i * 2 * kStat + head * 4));
    return most;
  };
  if (thread < kTeams * kDecodeHeads) {  // a team's factor of a head a thread
    const int i = thread / kDecodeHeads, head = thread % kDecodeHeads;
    const uint32_t at = i * kStat + head * 4, from = stats + i * 2 * kStat + head * 4;
    const float most = most_of(head), peak = load_float(from), unit = load_float(from + kStat);
    float weight = 0;
#pragma unroll
    for (int w = 0; w < kTeam; ++w) weight += load_float(totals + (i * kTeam + w) * kStat + head * 4);
    const float f = weight == 0 ? 0.0f : exp2_fast(peak - most);
    store_shared(factors + at, f * unit), store_shared(weights + at, f * weight);
  }
  __syncthreads();
  if (thread < warp.n_heads) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kTeams; ++i) all += load_float(weights + i * kStat + thread * 4);
    const int64_t part = first_part + int64_t(thread) * a.n_splits;
    a.partial_sums[2 * part] = all > 0 ? most_of(thread) * kLn2 : -INFINITY;
    a.partial_sums[2 * part + 1] = all;
  }
  for (int i = thread; i < kTeam * 256; i += kThreads) {
    const int part = i / 256, j = i % 256 / 32, g = i % 32 / 4, head = i % 4 * 2;
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kTeams; ++k) {
      const uint4 v = load_shared4(warp.shared.ring_of(k * kTeam + part) + i % 256 * 16);
      const float left = head < warp.n_heads ? load_float(factors + k * kStat + head * 4) : 0.0f,
                  right = head + 1 < warp.n_heads ? load_float(factors + k * kStat + head * 4 + 4) : 0.0f;
      all.x += left * __uint_as_float(v.x), all.y += right * __uint_as_float(v.y);
      all.z += left * __uint_as_float(v.z), all.w += right * __uint_as_float(v.w);
    }
    const int at = decode_position(part * 128 + g * 16 + j * 2);
    float* to = a.partial + (first_part + int64_t(head) * a.n_splits) * D + at;
    if (head < warp.n_heads) *reinterpret_cast<float2*>(to) = {all.x, all.z};
    if (head + 1 < warp.n_heads) *reinterpret_cast<float2*>(to + int64_t(a.n_splits) * D) = {all.y, all.w};
  }
}

// Where a launch fills the device, the last blocks wait for multiprocessors that small launches before hold:
// the others take all there is unless some would take a second tile. Tiles are as small as keep every team
// busy.
template <int D, int kTerms>
__device__ __forceinline__ void share_tiles(Warp<D, kTerms>& warp) {
  constexpr int kTeam = Warp<D>::kTeam, kTeams = Warp<D>::kTeams, kKeys = kTeam * kChunkKeys, kMany = 100,
                kLate = 10;
  const int n = warp.a.n_splits, tiles = warp.pos / kKeys - warp.first_pos / kKeys + 1;
  warp.active = n > kMany && tiles <= kTeams * (n - kLate) ? n - kLate : n;
  warp.unit = kTeam;
#pragma unroll
  for (int part = 2; part <= kTeam; part *= 2)
    if (tiles * part <= kTeams * warp.active) warp.unit = kTeam / part;
}

template <int D, int kTerms>
__device__ __forceinline__ Warp<D, kTerms> find_warp(const AttentionArgs& a, const StepView& step,
                                                     int head_tiles) {
  constexpr int kTeam = Warp<D>::kTeam;
  const int group = a.n_head / a.kv.n_kv, tile = int(blockIdx.y) % head_tiles, index = int(threadIdx.x) / 32;
  Warp<D, kTerms> warp{a, step};
  warp.out_row = int(blockIdx.z);
  // Rows, sequences and tables were there before the first kernel of the step.
  const graph::Row* row =
      step.rows + (a.output_rows && !a.settled ? step.out_rows[warp.out_row] : warp.out_row);
  warp.pos = row->pos, warp.seq = row->seq;
  SequenceInfo sequence = step.sequences[0];  // most often it: asked for beside the row
  if (warp.seq != 0) sequence = step.sequences[warp.seq];
  warp.shift = sequence.shift, warp.keep_pages = sequence.keep_pages;
  warp.lane = int(threadIdx.x) % 32;
  warp.team = index / kTeam;
  warp.part = index % kTeam;
  warp.kv_head = int(blockIdx.y) / head_tiles;
  warp.first_head = warp.kv_head * group + tile * kDecodeHeads;
  warp.n_heads = min(kDecodeHeads, group - tile * kDecodeHeads);
  warp.first_pos = a.kv.window > 0 ? sequence.first_pos[1] : sequence.first_pos[0];
  if (a.kv.window > 0) warp.first_pos = max(warp.first_pos, warp.pos - a.kv.window + 1);
  warp.table = step.tables + (int64_t(warp.seq) * 4 + (a.kv.window > 0 ? 2 : 0)) * step.table_stride;
  warp.exact_table = warp.table + step.table_stride;
  share_tiles(warp);
  return warp;
}

// Whether any team of a block has a tile.
template <int D, bool kSmall, int kTerms>
__device__ __forceinline__ bool has_work(const Warp<D, kTerms>& warp, int split) {
  if (split >= warp.active) return false;
  const int keys = (kSmall ? warp.unit : Warp<D>::kTeam) * kChunkKeys;
  if (warp.first_pos / keys + split <= warp.pos / keys) return true;
  return (open_page(warp.a.kv.k_form) || open_page(warp.a.kv.v_form)) &&
         warp.active - 1 - split < Tiles<D, true>::count_all(warp);
}

}  // namespace
}  // namespace kvasir::cuda
