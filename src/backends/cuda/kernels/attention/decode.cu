// A block of 16 warps takes one row, up to 8 query heads of one KV head, and a share of the keys. D / 128
// warps are a team; a tile is 16 keys a warp of it. Each warp scores 16 keys over the whole head, the team
// meets, and each warp mixes all keys of the tile into its 128 values. A warp copies what itself will read,
// several chunks ahead, so nothing but the scores is waited for. Teams of a block merge in order at the end.
#include <algorithm>

#include "backends/cuda/kernels/attention/chunks.cuh"
#include "backends/cuda/kernels/attention/decode.h"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kMaxSlots = 8;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

// Dynamic shared memory: queries and weights, tables of pairs (at a multiple of the largest), then this.
template <int D>
struct Layout {
  static constexpr int kTeam = D / kChunkDims, kTeams = kWarps / kTeam, kKeys = kChunkKeys * kTeam;
  static constexpr int kHalves = kTeam * 4 * 32 * 16;  // queries as score_chunk takes them
  static constexpr int kQueries = 2 * kHalves;         // of pages before and after a shift
  static constexpr int kWeights = kWarps * kChunkKeys * 2 * 4, kScores = kWeights * kDecodeHeads;
  static constexpr int kTableAlign = 128 << 8;
  static constexpr int kRings = 141312;  // a part for every warp that has work
  static constexpr int kBytes = kTableAlign - 1024 + kTableBytes + kScores + kRings;
  static_assert(kQueries + kWeights + 1024 <= kTableAlign && kBytes <= 232448);
  static_assert(kRings >= kWarps * 2 * slot_bytes(KvForm::kF16) && kRings >= kWarps * 16 * 8 * 32);
  uint32_t base, tables, scores, rings;
  __device__ explicit Layout(const void* memory)
      : base(shared_address(memory)),
        tables((base + kQueries + kWeights + kTableAlign - 1) / kTableAlign * kTableAlign),
        scores(tables + kTableBytes),
        rings(scores + kScores) {}
  __device__ uint32_t weights() const { return base + kQueries; }
};
__device__ __forceinline__ void store_shared(uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ float load_float(uint32_t at) { return __uint_as_float(load_shared(at)); }

// Within 2^-22 of 1, which is what a score is off by in units of the cap.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1.0f - __fdividef(2.0f, exp2_fast(x * (2 * kLog2E)) + 1.0f);
}

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

// One warp's work on its team's tiles.
template <int D>
struct Warp {
  using Shared = Layout<D>;
  static constexpr int kTeam = Shared::kTeam, kKeys = Shared::kKeys;
  const AttentionArgs& a;
  const StepView& step;
  Shared shared;
  graph::Row row;
  SequenceInfo seq;
  int lane, team, part;  // part: which 16 keys, then which 128 values
  int kv_head, first_pos, tile_end, stride;
  const int32_t *table, *exact_table;

  __device__ __forceinline__ bool reads_exact(int page) const {
    const int query_page = row.pos / kPage;
    if (!open_page(a.kv.k_form) && !open_page(a.kv.v_form)) return false;
    if (page != query_page && page >= a.kv.exact_first && query_page - page > a.kv.exact_last) return false;
    return exact_table[page] >= 0;
  }
  // The first of this team's tiles from `tile` on that belongs to the pass.
  __device__ __forceinline__ int find_tile(int tile, bool exact) const {
    while (tile < tile_end && reads_exact(tile * kKeys / kPage) != exact) tile += stride;
    return tile;
  }
  __device__ __forceinline__ uint32_t weights_of(int buffer) const {
    return shared.weights() + (team * 2 + buffer) * kKeys * 4;
  }
  __device__ __forceinline__ uint32_t scores_of(int buffer) const {
    return shared.scores + (team * 2 + buffer) * kKeys * kDecodeHeads * 4;
  }

  // Scores of this warp's keys, in powers of two, and the scales of their values, to the team.
  __device__ __forceinline__ void leave_scores(int tile, int buffer, const float (&s)[2][4],
                                               const float (&k_scale)[2], const float (&v_scale)[2]) const {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = part * kChunkKeys + g + 8 * i, pos = tile * kKeys + key;
      const bool seen = pos >= first_pos && pos <= row.pos;
      float x[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) x[e] = (s[0][2 * i + e] + s[1][2 * i + e]) * k_scale[i] * a.scale;
      if (a.softcap > 0)
#pragma unroll
        for (int e = 0; e < 2; ++e) x[e] = a.softcap * tanh_fast(x[e] / a.softcap);
#pragma unroll
      for (int e = 0; e < 2; ++e) x[e] = seen ? x[e] * kLog2E : -INFINITY;
      asm volatile(
          "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(scores_of(buffer) + (key * kDecodeHeads + 2 * t) * 4),
          "f"(x[0]), "f"(x[1])
          : "memory");
      if (t == 0) store_shared(weights_of(buffer) + key * 4, seen ? v_scale[i] : 0.0f);
    }
    if constexpr (kTeam == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "r"(kTeam * 32) : "memory");
  }

  // Weights of the tile's keys as right operands: exp2(score - largest) times the scale of the value in
  // units.
  __device__ __forceinline__ void softmax(int buffer, uint32_t (&w)[kTeam][2], float (&out)[8][4],
                                          float& largest, float& sum, float& unit) const {
    const int g = lane / 4, t = lane % 4;
    float x[kTeam][4], scale[kTeam][4], most = -INFINITY, top = 0;
#pragma unroll
    for (int c = 0; c < kTeam; ++c)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = c * kChunkKeys + t + 4 * k;
        x[c][k] = load_float(scores_of(buffer) + (key * kDecodeHeads + g) * 4);
        scale[c][k] = load_float(weights_of(buffer) + key * 4);
        most = fmaxf(most, x[c][k]);
        top = fmaxf(top, fabsf(scale[c][k]));
      }
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
      most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    }
    const float next = fmaxf(largest, most), from = next == -INFINITY ? 0.0f : next;
    float keep = exp2_fast(largest - from);
    const float next_unit = fmaxf(unit, __uint_as_float(__float_as_uint(top) & 0x7f800000u));
    const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(next_unit));  // of a power of two
    float total = 0;
#pragma unroll
    for (int c = 0; c < kTeam; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float p = exp2_fast(x[c][k] - from);
        total += p;
        x[c][k] = p * (scale[c][k] * inverse);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) w[c][i] = as_word(__floats2half2_rn(x[c][2 * i], x[c][2 * i + 1]));
    }
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    sum = sum * keep + total;
    largest = next;
    keep *= unit * inverse;
    unit = next_unit;
    if (!__any_sync(~0u, keep != 1.0f)) return;
    const float left = __shfl_sync(~0u, keep, 8 * t), right = __shfl_sync(~0u, keep, 8 * t + 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) out[j][0] *= left, out[j][1] *= right, out[j][2] *= left, out[j][3] *= right;
  }
};

// What a warp copies, in the order it will be used. A slot takes one chunk; all chunks of a side of a tile
// where they are small and their type is known.
template <int D, typename Forms, bool kExact>
struct Copier {
  static constexpr int kTeam = Layout<D>::kTeam, kKeys = Layout<D>::kKeys;
  static constexpr bool coded() {
    if constexpr (Forms::kFixed)
      return code_bits(Forms::k) <= 4 && code_bits(Forms::v) <= 4;
    else
      return false;
  }
  static constexpr bool kWhole = coded();
  static constexpr int kChunks = kWhole ? kTeam : 1;  // a slot

  const Warp<D>& warp;
  Forms forms;
  const uint8_t* encoded;  // this head's keys in page 0
  int64_t key_bytes;
  int slots, slot_size;
  uint32_t ring;
  int tile, side_chunk = 0, slot = 0;  // next to be copied
  const uint8_t *k_region, *v_region;

  __device__ __forceinline__ void locate() {
    if (tile >= warp.tile_end) return;
    const int page = tile * kKeys / kPage, query_page = warp.row.pos / kPage;
    if constexpr (kExact) {
      k_region = find_region(warp.a.kv, warp.step, warp.row.seq, query_page, page, warp.kv_head, 0).data;
      v_region = find_region(warp.a.kv, warp.step, warp.row.seq, query_page, page, warp.kv_head, 1).data;
    } else {
      k_region = encoded + warp.table[page] * warp.a.kv.page_bytes;
      v_region = k_region + key_bytes;
    }
  }
  template <KvForm F, bool kValues>
  __device__ __forceinline__ void copy(uint32_t to, int chunk) const {
    const int key0 = tile * kKeys % kPage, at = tile * kKeys + chunk * kChunkKeys;
    if constexpr (kValues)
      copy_chunk<D, F, true>(v_region, key0 + chunk * kChunkKeys, warp.part, warp.first_pos - at,
                             warp.row.pos + 1 - at, to, warp.lane);
    else
      copy_chunk<D, F, false>(k_region, key0 + warp.part * kChunkKeys, chunk, 0, kChunkKeys, to, warp.lane);
  }
  template <bool kValues>
  __device__ __forceinline__ void copy_side(uint32_t to, int chunk) const {
    if constexpr (Forms::kFixed) {
      constexpr KvForm kForm = kValues ? Forms::v : Forms::k;
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        copy<kForm, kValues>(to + i * kChunkKeys * 16 * code_bits(kForm), kWhole ? i : chunk);
    } else {
      switch (kValues ? forms.v : forms.k) {
        case KvForm::kQ8_0:
          return copy<KvForm::kQ8_0, kValues>(to, chunk);
        case KvForm::kTbq2H:
          return copy<KvForm::kTbq2H, kValues>(to, chunk);
        case KvForm::kTbq3H:
          return copy<KvForm::kTbq3H, kValues>(to, chunk);
        case KvForm::kTbq4H:
          return copy<KvForm::kTbq4H, kValues>(to, chunk);
        default:
          return copy<KvForm::kF16, kValues>(to, chunk);
      }
    }
  }
  // Scales of this warp's 16 keys, and of their values, travel with the first chunk of keys.
  __device__ __forceinline__ void copy_scales(uint32_t to) const {
    const int lane = warp.lane;
    const bool values = lane >= 2;
    const KvForm form = values ? forms.v : forms.k;
    if (lane >= 4 || !chunk_levels(form)) return;
    const int key = tile * kKeys % kPage + warp.part * kChunkKeys;
    copy_to<16>(to + slot_size - kTailBytes + lane * 16,
                (values ? v_region : k_region) + kPage * (D / 8 * code_bits(form)) + key * 2 + lane % 2 * 16,
                true);
  }
  // This warp's share of a side on its way to L2, half a tile before it is copied. Of wider types L2 would
  // hold too much: f16 took 445 us with it where 360 are needed without.
  __device__ __forceinline__ void announce(const uint8_t* region, KvForm form) const {
    if (!kWhole || warp.lane != 0 || tile >= warp.tile_end) return;
    const int bytes = kChunkKeys * (D / 8) * code_bits(form);
    prefetch_l2(region + (tile * kKeys % kPage / kChunkKeys + warp.part) * bytes, bytes);
  }
  __device__ __forceinline__ void next() {
    if (tile < warp.tile_end) {
      const uint32_t to = ring + slot * slot_size;
      const bool values = side_chunk >= kTeam;
      if (values)
        copy_side<true>(to, side_chunk - kTeam);
      else
        copy_side<false>(to, side_chunk);
      if (side_chunk == 0) {
        copy_scales(to);
        announce(v_region, forms.v);
      }
      side_chunk += kChunks;
      if (side_chunk == 2 * kTeam) {
        side_chunk = 0;
        tile = warp.find_tile(tile + warp.stride, kExact);
        locate();
        announce(k_region, forms.k);
      }
    }
    slot = slot + 1 == slots ? 0 : slot + 1;
    commit_copies();
  }
  __device__ __forceinline__ void wait() const {
    if constexpr (kWhole) {
      wait_copies<1>();
    } else {
      if (slots == 8)
        wait_copies<7>();
      else if (slots == 4)
        wait_copies<3>();
      else if (slots == 3)
        wait_copies<2>();
      else
        wait_copies<1>();
    }
    __syncwarp();
  }
};

template <typename Forms>
__device__ __forceinline__ void score_any(const Forms& forms, uint32_t slot, uint32_t q, uint32_t tables,
                                          int lane, float (&s)[2][4]) {
  if constexpr (Forms::kFixed) {
    score_chunk<Forms::k>(slot, q, tables, lane, s);
  } else {
    switch (forms.k) {
      case KvForm::kQ8_0:
        return score_chunk<KvForm::kQ8_0>(slot, q, tables, lane, s);
      case KvForm::kTbq2H:
        return score_chunk<KvForm::kTbq2H>(slot, q, tables, lane, s);
      case KvForm::kTbq3H:
        return score_chunk<KvForm::kTbq3H>(slot, q, tables, lane, s);
      case KvForm::kTbq4H:
        return score_chunk<KvForm::kTbq4H>(slot, q, tables, lane, s);
      default:
        return score_chunk<KvForm::kF16>(slot, q, tables, lane, s);
    }
  }
}
template <typename Forms>
__device__ __forceinline__ void mix_any(const Forms& forms, uint32_t slot, const uint32_t (&w)[2],
                                        uint32_t tables, int lane, float (&out)[8][4]) {
  if constexpr (Forms::kFixed) {
    mix_chunk<Forms::v>(slot, w, tables, lane, out);
  } else {
    switch (forms.v) {
      case KvForm::kQ8_0:
        return mix_chunk<KvForm::kQ8_0>(slot, w, tables, lane, out);
      case KvForm::kTbq2H:
        return mix_chunk<KvForm::kTbq2H>(slot, w, tables, lane, out);
      case KvForm::kTbq3H:
        return mix_chunk<KvForm::kTbq3H>(slot, w, tables, lane, out);
      case KvForm::kTbq4H:
        return mix_chunk<KvForm::kTbq4H>(slot, w, tables, lane, out);
      default:
        return mix_chunk<KvForm::kF16>(slot, w, tables, lane, out);
    }
  }
}

// The team's tiles from `first_tile` on that are read exactly, or encoded. `teams`: that have work, and share
// the rings. `wait`: until then nothing of this step may be read; the first tile may be copied before it.
template <int D, bool kExact, typename Forms, typename Wait>
__device__ __forceinline__ void run_pass(const Warp<D>& warp, Forms forms, int first_tile, int teams,
                                         bool early, const Wait& wait, float (&out)[8][4], float& largest,
                                         float& sum, float& unit) {
  using Copies = Copier<D, Forms, kExact>;
  constexpr int kTeam = Layout<D>::kTeam, kKeys = Layout<D>::kKeys, kChunks = Copies::kChunks;
  const KvView& kv = warp.a.kv;
  Copies copies{warp, forms};
  copies.key_bytes = region_bytes(kv.k_form, D);
  copies.encoded = kv.pages + warp.kv_head * (copies.key_bytes + region_bytes(kv.v_form, D));
  const int room = Layout<D>::kRings / (teams * kTeam) / 16 * 16;
  const int k_size = slot_bytes(forms.k) + (kChunks - 1) * kChunkKeys * 16 * code_bits(forms.k),
            v_size = slot_bytes(forms.v) + (kChunks - 1) * kChunkKeys * 16 * code_bits(forms.v);
  copies.slot_size = max(k_size, v_size);
  const int fit = room / copies.slot_size;
  copies.slots = Copies::kWhole ? 2 : fit >= kMaxSlots ? kMaxSlots : min(fit, 4);  // as wait() knows them
  copies.ring = warp.shared.rings + (warp.team * kTeam + warp.part) * room;
  int tile = copies.tile = warp.team < teams ? warp.find_tile(first_tile, kExact) : warp.tile_end;
  copies.locate();
  // The query's own page may be in the making; any other is as earlier steps left it.
  const bool settled = early && tile * kKeys / kPage != warp.row.pos / kPage;
  const int ahead = settled ? min(copies.slots, 2 * kTeam / kChunks) : 0;
#pragma unroll 1
  for (int i = 0; i <= copies.slots; ++i) {
    if (i == ahead) wait();
    if (i < copies.slots) copies.next();
  }
  int at = 0, buffer = 0;
  const auto advance = [&] {
    __syncwarp();
    copies.next();
    at = at + 1 == copies.slots ? 0 : at + 1;
  };
#pragma unroll 1
  for (; tile < warp.tile_end; tile = warp.find_tile(tile + warp.stride, kExact), buffer ^= 1) {
    const bool shifted = warp.seq.shift != 0 && tile * kKeys / kPage >= warp.seq.keep_pages;
    const uint32_t q = warp.shared.base + shifted * Layout<D>::kHalves;
    float s[2][4] = {}, k_scale[2] = {1, 1}, v_scale[2] = {1, 1};
    uint32_t slot = 0;
#pragma unroll 1
    for (int c = 0; c < kTeam; ++c) {
      if (c % kChunks == 0) {
        copies.wait();
        slot = copies.ring + at * copies.slot_size;
      }
      if (c == 0) {
        const uint32_t tail = slot + copies.slot_size - kTailBytes + warp.lane / 4 * 2;
        if (chunk_levels(forms.k))
          k_scale[0] = __half2float(load_half(tail)), k_scale[1] = __half2float(load_half(tail + 16));
        if (chunk_levels(forms.v))
          v_scale[0] = __half2float(load_half(tail + 32)), v_scale[1] = __half2float(load_half(tail + 48));
      }
      score_any(forms, slot, q + c * 2048, warp.shared.tables, warp.lane, s);
      slot += kChunkKeys * 16 * code_bits(forms.k);
      if ((c + 1) % kChunks == 0) advance();
    }
    warp.leave_scores(tile, buffer, s, k_scale, v_scale);
    uint32_t w[kTeam][2];
    warp.softmax(buffer, w, out, largest, sum, unit);
#pragma unroll 1
    for (int c = 0; c < kTeam; ++c) {
      if (c % kChunks == 0) {
        copies.wait();
        slot = copies.ring + at * copies.slot_size;
      }
      uint32_t mine[2] = {w[0][0], w[0][1]};
#pragma unroll
      for (int k = 1; k < kTeam; ++k)  // an index known at run time would move the array to memory
        if (c == k) mine[0] = w[k][0], mine[1] = w[k][1];
      mix_any(forms, slot, mine, warp.shared.tables, warp.lane, out);
      slot += kChunkKeys * 16 * code_bits(forms.v);
      if ((c + 1) % kChunks == 0) advance();
    }
  }
  wait_copies<0>();
}

// The block's queries, in f16, as score_chunk takes them.
template <int D>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, uint32_t to, int r, int first_head,
                                             int n_heads, bool shifts) {
  constexpr int kAll = Layout<D>::kTeam * 4 * 32;
  for (int i = int(threadIdx.x); i < (shifts ? 2 : 1) * kAll; i += kThreads) {
    const int variant = i / kAll, at = i % kAll, lane = at % 32, head = lane / 4;
    const int d = at / 128 * kChunkDims + lane % 4 * 32 + at / 32 % 4 * 8;
    float4 x[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (head < n_heads) {
      const float* from = (variant ? a.q_shifted : a.q) + (int64_t(r) * a.n_head + first_head + head) * D + d;
      x[0] = *reinterpret_cast<const float4*>(from), x[1] = *reinterpret_cast<const float4*>(from + 4);
    }
    asm volatile(
        "st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to + i * 16),
        "r"(as_word(__floats2half2_rn(x[0].x, x[0].y))), "r"(as_word(__floats2half2_rn(x[0].z, x[0].w))),
        "r"(as_word(__floats2half2_rn(x[1].x, x[1].y))), "r"(as_word(__floats2half2_rn(x[1].z, x[1].w)))
        : "memory");
  }
}

// Sums of the teams, in order, to this block's part of every head.
template <int D>
__device__ __forceinline__ void leave_parts(const AttentionArgs& a, const Warp<D>& warp, int64_t first_part,
                                            int n_heads, const float (&out)[8][4], float largest, float sum,
                                            float unit) {
  constexpr int kTeams = Layout<D>::kTeams, kTeam = Layout<D>::kTeam;
  const uint32_t stats = warp.shared.scores, factors = stats + kTeams * 3 * kDecodeHeads * 4,
                 sums = warp.shared.rings;
  constexpr int kStat = kDecodeHeads * 4;
  __syncthreads();  // scores and slots have been read
  const uint32_t mine = sums + (warp.team * kTeam + warp.part) * 4096 + warp.lane * 16;
#pragma unroll
  for (int j = 0; j < 8; ++j)
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(mine + j * 512), "f"(out[j][0]),
                 "f"(out[j][1]), "f"(out[j][2]), "f"(out[j][3])
                 : "memory");
  if (warp.part == 0 && warp.lane % 4 == 0) {
    const uint32_t to = stats + warp.team * 3 * kStat + warp.lane;
    store_shared(to, largest);
    store_shared(to + kStat, sum);
    store_shared(to + 2 * kStat, unit);
  }
  __syncthreads();
  const int thread = int(threadIdx.x);
  if (thread < n_heads) {
    float most = -INFINITY, total = 0;
    const uint32_t from = stats + thread * 4;
    for (int i = 0; i < kTeams; ++i) most = fmaxf(most, load_float(from + i * 3 * kStat));
    for (int i = 0; i < kTeams; ++i) {
      const float weight = load_float(from + (i * 3 + 1) * kStat);
      const float f = weight == 0 ? 0.0f : exp2_fast(load_float(from + i * 3 * kStat) - most);
      total += f * weight;
      store_shared(factors + i * kStat + thread * 4, f * load_float(from + (i * 3 + 2) * kStat));
    }
    const int64_t part = first_part + int64_t(thread) * a.n_splits;
    a.partial_sums[2 * part] = most * kLn2;
    a.partial_sums[2 * part + 1] = total;
  }
  __syncthreads();
  for (int i = thread; i < kTeam * 256; i += kThreads) {
    const int part = i / 256, j = i % 256 / 32, g = i % 32 / 4, head = i % 4 * 2;
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kTeams; ++k) {
      const uint4 v = load_shared4(sums + (k * kTeam + part) * 4096 + i % 256 * 16);
      const float left = head < n_heads ? load_float(factors + k * kStat + head * 4) : 0.0f,
                  right = head + 1 < n_heads ? load_float(factors + k * kStat + head * 4 + 4) : 0.0f;
      total.x += left * __uint_as_float(v.x), total.y += right * __uint_as_float(v.y);
      total.z += left * __uint_as_float(v.z), total.w += right * __uint_as_float(v.w);
    }
    const int at = decode_position(part * 128 + g * 16 + j * 2);
    float* to = a.partial + (first_part + int64_t(head) * a.n_splits) * D + at;
    if (head < n_heads) *reinterpret_cast<float2*>(to) = {total.x, total.z};
    if (head + 1 < n_heads) *reinterpret_cast<float2*>(to + int64_t(a.n_splits) * D) = {total.y, total.w};
  }
}

template <int D, typename Forms>
__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ StepView step,
                  int head_tiles) {
  extern __shared__ __align__(16) uint8_t memory[];
  using Shared = Layout<D>;
  const Shared shared(memory);
  constexpr int kTeam = Shared::kTeam, kTeams = Shared::kTeams, kKeys = Shared::kKeys;
  let_next_start();
  // Rows, sequences and tables were there before the first kernel of the step.
  const int r = int(blockIdx.z), group = a.n_head / a.kv.n_kv, split = int(blockIdx.x);
  const int kv_head = int(blockIdx.y) / head_tiles, tile = int(blockIdx.y) % head_tiles;
  const int first_head = kv_head * group + tile * kDecodeHeads,
            n_heads = min(kDecodeHeads, group - tile * kDecodeHeads);
  const int64_t first_part = (int64_t(r) * a.n_head + first_head) * a.n_splits + split;
  const int warp_index = int(threadIdx.x) / 32;
  Warp<D> warp{a, step, shared};
  warp.row = step.rows[a.output_rows ? step.out_rows[r] : r];
  warp.seq = step.sequences[warp.row.seq];
  warp.lane = int(threadIdx.x) % 32;
  warp.team = warp_index / kTeam;
  warp.part = warp_index % kTeam;
  warp.kv_head = kv_head;
  warp.first_pos = first_visible(a.kv, warp.seq, warp.row.pos);
  warp.tile_end = warp.row.pos / kKeys + 1;
  warp.table = step.tables + (int64_t(warp.row.seq) * 4 + (a.kv.window > 0 ? 2 : 0)) * step.table_stride;
  warp.exact_table = warp.table + step.table_stride;
  const int first_tile = warp.first_pos / kKeys;
  if (first_tile + split >= warp.tile_end) {  // nothing for this block
    wait_for_inputs();
    if (threadIdx.x < unsigned(n_heads)) {
      const int64_t part = first_part + int64_t(threadIdx.x) * a.n_splits;
      a.partial_sums[2 * part] = -INFINITY;
      a.partial_sums[2 * part + 1] = 0;
    }
    return;
  }
  fill_level_pairs(a.kv.k_form, shared.tables, D);
  if (a.kv.v_form != a.kv.k_form) fill_level_pairs(a.kv.v_form, shared.tables, D);
  float out[8][4] = {};  // values 16 g + 2 j, + 1 of the warp's 128 for heads 2 t, 2 t + 1, in units
  float largest = -INFINITY, sum = 0, unit = 0x1p-24f;  // of head lane / 4
  const auto load_inputs = [&] {
    wait_for_inputs();
    load_queries<D>(a, shared.base, r, first_head, n_heads, warp.seq.shift != 0);
    __syncthreads();
  };
  const int teams = min(kTeams, (warp.tile_end - first_tile - split + a.n_splits - 1) / a.n_splits);
  warp.stride = teams * a.n_splits;
  const int mine = first_tile + warp.team * a.n_splits + split;
  Forms forms;
  if constexpr (!Forms::kFixed) forms = {a.kv.k_form, a.kv.v_form};
  run_pass<D, false>(warp, forms, mine, teams, a.settled, load_inputs, out, largest, sum, unit);
  if (open_page(a.kv.k_form) || open_page(a.kv.v_form)) {
    // Exact pages, few and four times as large, take all the room: a quarter of the teams, after the others.
    __syncthreads();
    constexpr int kFew = kTeams / 4;
    warp.stride = kFew * a.n_splits;
    run_pass<D, true>(
        warp, Known<KvForm::kF16, KvForm::kF16>{}, mine, kFew, false, [] {}, out, largest, sum, unit);
  }
  leave_parts<D>(a, warp, first_part, n_heads, out, largest, sum, unit);
}

template <int D, typename Forms>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  const int tiles = decode_head_tiles(args.n_head / args.kv.n_kv);
  launch(how, dim3(unsigned(args.n_splits), unsigned(args.kv.n_kv * tiles), unsigned(args.n_rows)),
         dim3(kThreads), Layout<D>::kBytes, decode_kernel<D, Forms>, args, step, tiles);
}
// Types of keys and values that are the same are known to the kernel.
template <int D>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  if (args.kv.k_form != args.kv.v_form) return run<D, Read>(how, args, step);
  switch (args.kv.k_form) {
    case KvForm::kQ8_0:
      return run<D, Known<KvForm::kQ8_0, KvForm::kQ8_0>>(how, args, step);
    case KvForm::kTbq2H:
      return run<D, Known<KvForm::kTbq2H, KvForm::kTbq2H>>(how, args, step);
    case KvForm::kTbq3H:
      return run<D, Known<KvForm::kTbq3H, KvForm::kTbq3H>>(how, args, step);
    case KvForm::kTbq4H:
      return run<D, Known<KvForm::kTbq4H, KvForm::kTbq4H>>(how, args, step);
    default:
      return run<D, Known<KvForm::kF16, KvForm::kF16>>(how, args, step);
  }
}

}  // namespace

bool has_decode(const KvView& kv) {
  return chunk_form(kv.k_form) && chunk_form(kv.v_form) &&
         (kv.head_dim == 128 || kv.head_dim == 256 || kv.head_dim == 512) &&
         shared_memory_limit() >= size_t(Layout<512>::kBytes);
}

void attend_decode(const Launch& how, const AttentionArgs& args, const StepView& step) {
  switch (args.kv.head_dim) {
    case 128:
      return run<128>(how, args, step);
    case 256:
      return run<256>(how, args, step);
    case 512:
      return run<512>(how, args, step);
    default:
      return;
  }
}

}  // namespace kvasir::cuda
