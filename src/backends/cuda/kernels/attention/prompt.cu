// Three warp groups: one brings pages of keys and values into shared memory as tiles of f16, those that are
// not f16 as expand_pages() has made them, whole pages of f16 and bf16 by a map of their rows; two multiply.
// A block takes `kRows` columns (query rows times heads of one KV head). At head size 256 each group has 64
// of them; at 512 both have the same 64 and half of the values each, so that sums fit in registers; both then
// need all scores, and each computes them: a third of the products is done twice, which is cheaper than
// passing them on.
//
// Caches of bf16 and f32 are multiplied as bf16, whose range they have. Queries and weights are two terms
// each, the second 8 rows below the first in the left operand, so that a lane has both terms' sums and adds
// them: half as many columns. An f32 page is two tiles a side, one after the other.
#include <algorithm>

#include "backends/cuda/kernels/attention/chunks.cuh"
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/prompt.h"
#include "backends/cuda/kernels/attention/wgmma.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 384, kGroup = 128, kMaxHeads = 16;
constexpr int kManyPages = 32;  // from here on the f16 side of a pair with codes is made tiles, too
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

enum class Numbers { kHalf, kBf16, kBf16Pair };  // of tiles; kBf16Pair: two make a side

// A slot has 256 values of each of a page's keys: at head size 512 a tile is two.
template <int D>
struct Shape {
  static constexpr int kRows = D == 512 ? 64 : 128, kSlots = D == 512 ? 5 : 4;  // rows: of the left operand
  static constexpr int kSlotBytes = kPage * 256 * 2, kParts = D / 256, kQueryBytes = kRows * D * 2;
  static constexpr int kBytes = 1024 + kQueryBytes + kSlots * kSlotBytes + kSlots * 20;
};

// Products of a page's weights and values run while the next page's scores become weights. Of two terms
// registers do not suffice, and products would wait for each other.
template <Numbers kNumbers>
constexpr bool kAhead = kNumbers == Numbers::kHalf;
template <Numbers kNumbers>
constexpr int kTiles = kNumbers == Numbers::kBf16Pair ? 2 : 1;  // of a side

// Tiles in the order in which they are multiplied: keys and values of a page, or the next page's keys first.
struct Bring {
  int page, side;
};
template <Numbers kNumbers>
__device__ __forceinline__ Bring bring_of(PageRange pages, int n) {
  if (!kAhead<kNumbers>) return {pages.begin + n / 2, n % 2};
  const bool keys = n % 2 == 1 || n == 0, last = n == 2 * (pages.end - pages.begin) - 1;
  return {last ? pages.end - 1 : pages.begin + (keys ? (n + 1) / 2 : n / 2 - 1), keys && !last ? 0 : 1};
}

// Rows [begin, end) of the launch: one sequence, one page of positions.
struct Segment {
  int begin, end;
  graph::Row head;
  SequenceInfo seq;
  int oldest, newest;  // positions seen
  PageRange pages;
};

// What all warp groups walk through in the same order.
struct Work {
  const AttentionArgs& a;
  const StepView& step;
  int first_row, n_rows, heads, first_head, kv_head;

  __device__ __forceinline__ graph::Row row(int r) const {
    return step.rows[a.output_rows ? step.out_rows[r] : r];
  }
  __device__ __forceinline__ Segment segment(int begin) const {
    Segment s;
    s.begin = begin;
    s.head = row(begin);
    s.end = begin + 1;
    int last = s.head.pos;
    while (s.end < first_row + n_rows) {
      const graph::Row next = row(s.end);
      if (next.seq != s.head.seq || next.pos / kPage != s.head.pos / kPage) break;
      last = next.pos;
      ++s.end;
    }
    s.seq = step.sequences[s.head.seq];
    s.oldest = first_visible(a.kv, s.seq, s.head.pos);
    s.newest = last;
    s.pages = pages(s.oldest / kPage, last / kPage + 1);
    return s;
  }
  // This block's part of pages [first, end) that the launch takes.
  __device__ __forceinline__ PageRange pages(int first, int end) const {
    if (a.expanded.tiles) first = max(first, a.expanded.first), end = max(first, min(end, a.expanded.end));
    const int n = end - first, each = (n + a.n_splits - 1) / a.n_splits, split = int(blockIdx.x);
    return {first + min(n, split * each), first + min(n, (split + 1) * each)};
  }
};

// Slots in turn.
template <int D>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == Shape<D>::kSlots) slot = 0, parity ^= 1;
  }
  __device__ __forceinline__ Turn after(int n) const {
    Turn t{slot + n, parity};
    if (t.slot >= Shape<D>::kSlots) t.slot -= Shape<D>::kSlots, t.parity ^= 1;
    return t;
  }
};

__device__ __forceinline__ void store_piece(uint32_t at, int4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void set_unit(uint32_t at, float unit) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(unit) : "memory");
}
template <int D>
__device__ __forceinline__ void copy_rows(const uint8_t* data, int low, int high, uint32_t slot, int thread) {
  constexpr int kUnits = 256 / 8;
#pragma unroll 4
  for (int unit = thread; unit < kPage * kUnits; unit += kGroup) {
    const int row = unit / kUnits;
    copy_to<16>(slot + tile_place(row, unit % kUnits), data + row * (D * 2) + unit % kUnits * 16,
                row >= low && row < high);
  }
}

// Barriers and units of the slots. A unit below zero is of rows that were copied one by one.
template <int D>
struct Slots {
  uint32_t tiles, full, empty, units;
  __device__ __forceinline__ explicit Slots(uint32_t at)
      : tiles(at),
        full(at + Shape<D>::kSlots * Shape<D>::kSlotBytes),
        empty(full + Shape<D>::kSlots * 8),
        units(empty + Shape<D>::kSlots * 8) {}
  __device__ __forceinline__ uint32_t tile(const Turn<D>& t) const {
    return tiles + t.slot * Shape<D>::kSlotBytes;
  }
  __device__ __forceinline__ void wait_full(const Turn<D>& t) const {
    wait_barrier(full + t.slot * 8, t.parity);
  }
  // The unit of a slot that has arrived.
  __device__ __forceinline__ float unit(const Turn<D>& t) const {
    float unit;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(unit) : "r"(units + t.slot * 4) : "memory");
    if (unit < 0) fence_tiles();
    return fabsf(unit);
  }
};

// Where a page lies: its index, and that of its exact copy when it is read so (else -1).
struct PagePlace {
  int index, exact;
};
__device__ __forceinline__ PagePlace find_page(const KvView& kv, const int32_t* table, int stride,
                                               int query_page, int page) {
  const bool exact = page == query_page || page < kv.exact_first || query_page - page <= kv.exact_last;
  const bool opens = open_page(kv.k_form) || open_page(kv.v_form);
  return {table[page], opens && exact ? table[stride + page] : -1};
}
// f16 rows of one head and side.
__device__ __forceinline__ const uint8_t* rows_of(const KvView& kv, const PagePlace& at, int head, int side) {
  const bool k_open = open_page(kv.k_form), v_open = open_page(kv.v_form), exact = side ? v_open : k_open;
  const int64_t one = page_tile_bytes(kv.head_dim);
  const int64_t k = exact ? (k_open ? one : 0) : region_bytes(kv.k_form, kv.head_dim),
                v = exact ? (v_open ? one : 0) : region_bytes(kv.v_form, kv.head_dim);
  const uint8_t* base = !exact ? kv.pages + at.index * kv.page_bytes
                        : at.exact < kv.n_exact
                            ? kv.exact + at.exact * kv.exact_page_bytes
                            : kv.step_exact + (at.exact - kv.n_exact) * kv.exact_page_bytes;
  return base + head * (k + v) + (side ? k : 0);
}

// Both sides of a page are rows of 16 bits, which a map names.
__host__ __device__ __forceinline__ bool has_map(const KvView& kv) {
  return kv.k_form == kv.v_form && (kv.k_form == KvForm::kF16 || kv.k_form == KvForm::kBf16);
}

template <int D, Numbers kNumbers>
__device__ __forceinline__ void produce(const Work& work, const Slots<D>& slots, const RowsMap& map) {
  constexpr int kSideTiles = kTiles<kNumbers>, kParts = Shape<D>::kParts, kSlotBytes = Shape<D>::kSlotBytes;
  const AttentionArgs& a = work.a;
  const int thread = int(threadIdx.x) % kGroup, stride = work.step.table_stride;
  const bool mapped = has_map(a.kv);
  Turn<D> turn;
#pragma unroll 1
  for (int begin = work.first_row; begin < work.first_row + work.n_rows;) {
    const Segment s = work.segment(begin);
    begin = s.end;
    if (s.pages.begin >= s.pages.end) continue;
    const int32_t* table = work.step.tables + (int64_t(s.head.seq) * 4 + (a.kv.window > 0 ? 2 : 0)) * stride;
    const int n_sides = 2 * (s.pages.end - s.pages.begin);
#pragma unroll 1
    for (int n = 0; n < n_sides; ++n) {
      const auto [page, side] = bring_of<kNumbers>(s.pages, n);
      const PagePlace at = find_page(a.kv, table, stride, s.newest / kPage, page);
      const int low = max(0, s.oldest - page * kPage), high = min(kPage, s.newest + 1 - page * kPage);
      const bool tiles = open_page(side ? a.kv.v_form : a.kv.k_form) ? at.exact < 0 : a.expanded.plain;
      const bool whole = tiles || (mapped && high - low == kPage);
      // Of tiles, or of rows in the map.
      const int first = tiles
                            ? (((page - a.expanded.first) * a.kv.n_kv + work.kv_head) * 2 + side) * kSideTiles
                            : ((at.index * a.kv.n_kv + work.kv_head) * 2 + side) * kPage;
#pragma unroll 1
      for (int i = 0; i < kSideTiles * kParts; ++i, turn.next()) {
        const uint32_t ready = slots.full + turn.slot * 8, to = slots.tile(turn);
        wait_barrier(slots.empty + turn.slot * 8, turn.parity ^ 1);
        if (whole) {
          if (thread == 0) {
            set_unit(slots.units + turn.slot * 4, tiles ? a.expanded.units[first + i / kParts] : 1);
            arrive_expecting(ready, kSlotBytes);
            if (tiles)
              copy_bulk(to, a.expanded.tiles + (int64_t(first) * kParts + i) * kSlotBytes, kSlotBytes, ready);
            else
#pragma unroll
              for (int block = 0; block < 4; ++block)
                copy_box(to + block * 8192, map, i * 256 + block * 64, first, ready);
          }
          arrive(ready);
        } else {
          if (thread == 0) {
            set_unit(slots.units + turn.slot * 4, -1);
            arrive(ready);
          }
          copy_rows<D>(rows_of(a.kv, at, work.kv_head, side) + i * 512, low, high, to, thread);
          arrive_after_copies(ready);
        }
      }
    }
  }
}

// One group's columns and 256 values.
template <int D, Numbers kNumbers>
struct Consumer {
  const Work& work;
  uint32_t queries;
  Slots<D> slots;
  int group, thread;
  static constexpr bool kShared = D == 512;  // both groups have the same columns
  static constexpr bool kBf16 = kNumbers != Numbers::kHalf;
  static constexpr int kTerms = kBf16 ? 2 : 1, kColumns = 64 / kTerms,
                       kOwn = 2 / kTerms;                                             // of a group, a lane
  static constexpr int kParts = Shape<D>::kParts, kSide = kTiles<kNumbers> * kParts;  // slots of a side

  // Of the left operand's 64 rows, and what they stand for.
  __device__ __forceinline__ int row0() const { return kShared ? 0 : group * 64; }
  __device__ __forceinline__ int column0() const { return kShared ? 0 : group * kColumns; }
  __device__ __forceinline__ int value0() const { return kShared ? group * 256 : 0; }
  // The lane's columns: its rows' own, or that whose two terms they are.
  __device__ __forceinline__ int column(int i) const {
    return column0() + thread / 32 * (16 / kTerms) + thread % 32 / 4 + 8 * i;
  }
  __device__ __forceinline__ void meet() const {
    asm volatile("bar.sync %0, %1;" ::"r"(kShared ? 1 : 1 + group), "r"(kShared ? 256 : 128) : "memory");
  }

  __device__ __forceinline__ void load_queries(const Segment& s, bool shifted) const {
    const float* q = shifted ? work.a.q_shifted : work.a.q;
    constexpr int kUnits = D / 8, kLoaders = kShared ? 256 : 128;
    meet();  // the products that read the old ones have ended
#pragma unroll 2
    for (int i = kShared ? group * 128 + thread : thread; i < kColumns * kUnits; i += kLoaders) {
      const int local = i / kUnits, c = column0() + local, piece = i % kUnits,
                r = work.first_row + c / work.heads;
      float4 x{0, 0, 0, 0}, y = x;
      if (r >= s.begin && r < s.end) {
        const float4* from = reinterpret_cast<const float4*>(
            q + (int64_t(r) * work.a.n_head + work.first_head + c % work.heads) * D + piece * 8);
        x = from[0], y = from[1];
      }
      const int row = row0() + (kBf16 ? local / 8 * 16 + local % 8 : local);
      const uint32_t at =
          queries + piece / 8 * (Shape<D>::kRows * 128) + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
      if constexpr (kBf16) {
        const uint32_t v[4] = {bf16_pair(x.x, x.y), bf16_pair(x.z, x.w), bf16_pair(y.x, y.y),
                               bf16_pair(y.z, y.w)};
        store_piece(at, {int(v[0]), int(v[1]), int(v[2]), int(v[3])});
        store_piece(at + 8 * 128, {int(bf16_rest(v[0], x.x, x.y)), int(bf16_rest(v[1], x.z, x.w)),
                                   int(bf16_rest(v[2], y.x, y.y)), int(bf16_rest(v[3], y.z, y.w))});
      } else {
        store_piece(at,
                    {int(as_word(__floats2half2_rn(x.x, x.y))), int(as_word(__floats2half2_rn(x.z, x.w))),
                     int(as_word(__floats2half2_rn(y.x, y.y))), int(as_word(__floats2half2_rn(y.z, y.w)))});
      }
    }
    fence_tiles();
    meet();
  }

  // The first slot of a side has arrived when these are called.
  __device__ __forceinline__ void score(const Turn<D>& keys, float (&s)[32]) const {
    const uint64_t a = tile_descriptor(queries + row0() * 128, 0);
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const Turn<D> turn = keys.after(i);
      if (i > 0) {
        slots.wait_full(turn);
        (void)slots.unit(turn);
      }
      begin_products();
      const uint64_t b = tile_descriptor(slots.tile(turn), 0);
#pragma unroll
      for (int k = 0; k < 16; ++k) {
        const int block = k / 4, within = k % 4 * 32;
        product_64<kBf16>(s, a + ((i % kParts * 4 + block) * (Shape<D>::kRows * 128) + within) / 16,
                          b + (block * (kPage * 128) + within) / 16, i == 0 && k == 0);
      }
    }
    commit_products();
  }
  // The slot of this group's values, the first of them.
  __device__ __forceinline__ Turn<D> own_values(const Turn<D>& values) const {
    return kShared ? values.after(group) : values;
  }
  __device__ __forceinline__ void mix(const Turn<D>& values, const uint32_t (&p)[4][4],
                                      float (&o)[128]) const {
#pragma unroll
    for (int i = 0; i < kSide; i += kParts) {
      const Turn<D> turn = own_values(values.after(i));
      if (i > 0) {
        slots.wait_full(turn);
        (void)slots.unit(turn);
      }
      begin_products();
      const uint64_t b = tile_descriptor(slots.tile(turn), kPage * 128);
#pragma unroll
      for (int k = 0; k < 4; ++k) product_256<false, kBf16>(o, p[k], b + k * 2048 / 16);
    }
    commit_products();
  }

  // Scores to weights; earlier sums are to be multiplied by `keep`, and `sum` is of this lane's keys alone.
  // [low, high): keys of the page that each of the lane's columns sees. Of two terms, both scores are added
  // to the first. Short chains: a warp has one other beside it to hide what it waits for.
  __device__ __forceinline__ void weigh(float (&s)[32], float unit, bool whole, const int (&low)[kOwn],
                                        const int (&high)[kOwn], float (&largest)[kOwn], float (&sum)[kOwn],
                                        float (&keep)[kOwn]) const {
    const AttentionArgs& a = work.a;
    const int t = thread % 4;
    const auto own = [](int i) { return i / 2 % 2 < kOwn; };
    float factor = a.scale * kLog2E * unit;
    if constexpr (kBf16)
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (own(i)) s[i] += s[i + 2];
    if (a.softcap > 0) {
      const float inner = a.scale * unit / a.softcap * (2 * kLog2E), outer = a.softcap * kLog2E;
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (own(i)) s[i] = outer - __fdividef(2 * outer, exp2_fast(s[i] * inner) + 1.0f);
      factor = 1;
    }
    if (!whole)
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (!own(i)) continue;
        const int key = i / 4 * 8 + t * 2 + i % 2, half = i / 2 % 2;
        if (key < low[half] || key >= high[half]) s[i] = -INFINITY;
      }
    constexpr int kChains = 4;  // of a column
    float most[kOwn][kChains], total[kOwn][kChains], from[kOwn];
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float pair = fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]);
        most[i][n % kChains] = n < kChains ? pair : fmaxf(most[i][n % kChains], pair);
      }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float m = fmaxf(fmaxf(most[i][0], most[i][1]), fmaxf(most[i][2], most[i][3]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      const float next = fmaxf(largest[i], m * factor);
      from[i] = next == -INFINITY ? 0.0f : next;
      keep[i] = exp2_fast(largest[i] - from[i]);
      largest[i] = next;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        float &x = s[4 * n + 2 * i], &y = s[4 * n + 2 * i + 1], &sums = total[i][n % kChains];
        x = exp2_fast(fmaf(x, factor, -from[i]));
        y = exp2_fast(fmaf(y, factor, -from[i]));
        sums = n < kChains ? x + y : sums + (x + y);
      }
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      sum[i] = fmaf(sum[i], keep[i], (total[i][0] + total[i][1]) + (total[i][2] + total[i][3]));
  }

  // Weights as left operands, and the earlier sums.
  __device__ __forceinline__ void pack(const float (&s)[32], const float (&keep)[kOwn], uint32_t (&p)[4][4],
                                       float (&o)[128]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = &s[4 * (2 * k + i / 2) + (kBf16 ? 0 : 2 * (i % 2))];
        if constexpr (kBf16)
          p[k][i] = i % 2 ? bf16_rest(p[k][i - 1], x[0], x[1]) : bf16_pair(x[0], x[1]);
        else
          p[k][i] = as_word(__floats2half2_rn(x[0], x[1]));
      }
    bool kept = true;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) kept &= keep[i] == 1.0f;
    if (__any_sync(~0u, !kept))
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] *= keep[i / 2 % kOwn];
  }

  // Waits for values and gives weights their unit.
  __device__ __forceinline__ void meet_values(const Turn<D>& values, uint32_t (&p)[4][4]) const {
    const Turn<D> turn = own_values(values);
    slots.wait_full(turn);
    const float unit = slots.unit(turn);
    if constexpr (kBf16) return;
    if (unit != 1) {
      const __half2 by = __float2half2_rn(unit);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&p[i / 4][i % 4]), by);
        p[i / 4][i % 4] = as_word(v);
      }
    }
  }
  // Slots of values that only this group reads take two arrivals of each of its warps.
  __device__ __forceinline__ void release(const Turn<D>& turn, bool values) const {
    __syncwarp();
    if (thread % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < kSide; i += kShared && values ? kParts : 1) {
      const uint32_t at = slots.empty + (values ? own_values(turn.after(i)) : turn.after(i)).slot * 8;
      arrive(at);
      if (kShared && values) arrive(at);
    }
  }

  // What this lane's columns see of a segment.
  struct View {
    const Segment& s;
    int pos[kOwn], first[kOwn];
    bool alone;
    int seen_by_all;
  };
  __device__ __forceinline__ View view(const Segment& s) const {
    View v{s};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = work.first_row + column(i) / work.heads;
      const bool mine = r >= s.begin && r < s.end;
      v.pos[i] = mine ? work.row(r).pos : -1;
      v.first[i] = mine ? first_visible(work.a.kv, s.seq, v.pos[i]) : 0;
    }
    v.alone = s.begin == work.first_row && s.end == work.first_row + work.n_rows;
    v.seen_by_all = first_visible(work.a.kv, s.seq, s.newest);
    return v;
  }
  __device__ __forceinline__ void weigh_page(const View& v, int page, float unit, float (&score_of)[32],
                                             float (&largest)[kOwn], float (&sum)[kOwn],
                                             float (&keep)[kOwn]) const {
    const bool whole = v.alone && page * kPage >= v.seen_by_all && page * kPage + kPage - 1 <= v.s.head.pos;
    int low[kOwn], high[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) low[i] = v.first[i] - page * kPage, high[i] = v.pos[i] + 1 - page * kPage;
    weigh(score_of, unit, whole, low, high, largest, sum, keep);
  }

  // `turn`: of the next side to come.
  __device__ __forceinline__ void attend(const View& v, Turn<D>& turn, float (&o)[128],
                                         float (&largest)[kOwn], float (&sum)[kOwn]) const {
    const Segment& s = v.s;
    int base = -1;
    const auto meet_keys = [&](int page) {
      const int shifted = s.seq.shift != 0 && page >= s.seq.keep_pages;
      if (shifted != base) load_queries(s, shifted);
      base = shifted;
      slots.wait_full(turn);
      const float unit = slots.unit(turn);
      return kBf16 ? 1.0f : unit;
    };
    float score_of[32], keep[kOwn];
    uint32_t p[4][4];
    const auto score_page = [&](int page) {
      const float unit = meet_keys(page);
      score(turn, score_of);
      wait_products<0>();
      hold_sums(score_of);
      release(turn, false);
      turn = turn.after(kSide);
      weigh_page(v, page, unit, score_of, largest, sum, keep);
      pack(score_of, keep, p, o);
    };
    const auto mix_page = [&] {
      meet_values(turn, p);
      mix(turn, p, o);
      wait_products<0>();
      hold_sums(o);
      release(turn, true);
      turn = turn.after(kSide);
    };
    if constexpr (!kAhead<kNumbers>) {
#pragma unroll 1
      for (int page = s.pages.begin; page < s.pages.end; ++page) {
        score_page(page);
        mix_page();
      }
    } else {
      score_page(s.pages.begin);
#pragma unroll 1
      for (int page = s.pages.begin + 1; page < s.pages.end; ++page) {
        const Turn<D> values = turn.after(kSide);
        const float unit = meet_keys(page);
        score(turn, score_of);
        meet_values(values, p);
        mix(values, p, o);
        wait_products<1>();
        hold_sums(score_of);
        release(turn, false);
        turn = values.after(kSide);
        weigh_page(v, page, unit, score_of, largest, sum, keep);
        // Waited for here, not where it is read: the assembler moves all of the above behind the next wait,
        // where no products would run beside it, unless a loop stands between.
        slots.wait_full(turn);
        wait_products<0>();
        hold_sums(o);
        release(values, true);
        pack(score_of, keep, p, o);
      }
      mix_page();
    }
  }

  __device__ __forceinline__ void run() const {
    float o[128] = {}, largest[kOwn], sum[kOwn] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) largest[i] = -INFINITY;
    if (work.a.resumed) resume(o, largest, sum);
    Turn<D> turn;
#pragma unroll 1
    for (int begin = work.first_row; begin < work.first_row + work.n_rows;) {
      const Segment s = work.segment(begin);
      begin = s.end;
      if (s.pages.begin < s.pages.end) attend(view(s), turn, o, largest, sum);
    }
    // Each lane has the sum of its own keys.
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
    store(o, largest, sum);
  }

  // Where a column's part lies; false for columns past the rows.
  __device__ __forceinline__ bool part_of(int i, int64_t& part) const {
    const int c = column(i), local = c / work.heads;
    part = (int64_t(work.first_row + local) * work.a.n_head + work.first_head + c % work.heads) *
               work.a.n_splits +
           blockIdx.x;
    return local < work.n_rows;
  }
  // What the launch before left.
  __device__ __forceinline__ void resume(float (&o)[128], float (&largest)[kOwn], float (&sum)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      int64_t part;
      if (!part_of(i, part)) continue;
      largest[i] = work.a.partial_sums[2 * part] * kLog2E;
      const float all = work.a.partial_sums[2 * part + 1];
      if (all == 0) continue;
      if (thread % 4 == 0) sum[i] = all;
      const float* from = work.a.partial + part * D + value0() + thread % 4 * 2;
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        const float2 v = *reinterpret_cast<const float2*>(from + n * 8);
        o[4 * n + 2 * i] = v.x, o[4 * n + 2 * i + 1] = v.y;
      }
    }
  }
  __device__ __forceinline__ void store(const float (&o)[128], const float (&largest)[kOwn],
                                        const float (&sum)[kOwn]) const {
    const AttentionArgs& a = work.a;
    const int lane = thread % 32;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      int64_t part;
      if (!part_of(i, part)) continue;
      if (lane % 4 == 0 && value0() == 0) {
        a.partial_sums[2 * part] = largest[i] * kLn2;
        a.partial_sums[2 * part + 1] = sum[i];
      }
      if (sum[i] == 0) continue;
      float* to = a.partial + part * D + value0() + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        float2 v{o[4 * n + 2 * i], o[4 * n + 2 * i + 1]};
        if constexpr (kBf16) v.x += o[4 * n + 2], v.y += o[4 * n + 3];
        *reinterpret_cast<float2*>(to + n * 8) = v;
      }
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
// `early`: rows that the first block has less than others, so that those begin where pages of positions do: a
// block whose rows lie in two pages goes through all that they see twice.
template <int D, Numbers kNumbers>
__global__ void __launch_bounds__(kThreads, 1)
    prompt_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ StepView step,
                  const __grid_constant__ RowsMap map, int heads, int head_tiles, int rows_each, int early) {
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t queries = (shared_address(memory) + 1023) / 1024 * 1024;
  const Slots<D> slots(queries + Shape<D>::kQueryBytes);
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape<D>::kSlots; ++i) {
      init_barrier(slots.full + i * 8, kGroup + 1);  // every bringing thread, and the unit
      init_barrier(slots.empty + i * 8, 8);          // a lane of every multiplying warp
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_inputs();
  const int group = a.n_head / a.kv.n_kv, head_tile = int(blockIdx.y) % head_tiles;
  const int kv_head = int(blockIdx.y) / head_tiles, end = int(blockIdx.z + 1) * rows_each - early,
            first_row = max(end - rows_each, 0);
  const Work work{a,
                  step,
                  first_row,
                  min(end, a.n_rows) - first_row,
                  min(heads, group - head_tile * heads),
                  kv_head * group + head_tile * heads,
                  kv_head};
  const int warps = int(threadIdx.x) / kGroup;
  // The block has 384 x 168 registers. A warp group that asks for more than the others leave waits for ever.
  constexpr int kFew = D == 512 ? 56 : 40, kMany = D == 512 ? 224 : 232;
  static_assert(128 * kFew + 256 * kMany <= 384 * 168);
  if (warps == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kFew));
    produce<D, kNumbers>(work, slots, map);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMany));
    const Consumer<D, kNumbers> consumer{work, queries, slots, warps - 1, int(threadIdx.x) % kGroup};
    consumer.run();
  }
}
#else
template <int D, Numbers>
__global__ void prompt_kernel(const __grid_constant__ AttentionArgs, const __grid_constant__ StepView,
                              const __grid_constant__ RowsMap, int, int, int, int) {
  __trap();  // has_prompt() is false there
}
#endif

Numbers numbers_of(const KvView& kv) {
  if (kv.k_form == kv.v_form && kv.k_form == KvForm::kBf16) return Numbers::kBf16;
  if (kv.k_form == kv.v_form && kv.k_form == KvForm::kF32) return Numbers::kBf16Pair;
  return Numbers::kHalf;
}

template <int D>
int rows_of_block(const KvView& kv, int heads) {
  const int columns = Shape<D>::kRows / (numbers_of(kv) == Numbers::kHalf ? 1 : 2);
  return std::min(columns / heads, kPage);
}

template <int D>
void run(const Launch& how, const AttentionArgs& args, const StepView& step, int first_pos) {
  const int group = args.n_head / args.kv.n_kv, heads = std::min(group, kMaxHeads);
  const int head_tiles = (group + heads - 1) / heads, rows_each = rows_of_block<D>(args.kv, heads);
  const int early = kPage % rows_each == 0 ? first_pos % rows_each : 0;
  const dim3 blocks(unsigned(args.n_splits), unsigned(args.kv.n_kv * head_tiles),
                    unsigned((early + args.n_rows + rows_each - 1) / rows_each));
  const RowsMap map = has_map(args.kv) ? map_rows(args.kv.pages, D) : RowsMap{};
  const auto with = [&](auto kernel) {
    launch(how, blocks, dim3(kThreads), Shape<D>::kBytes, kernel, args, step, map, heads, head_tiles,
           rows_each, early);
  };
  switch (numbers_of(args.kv)) {
    case Numbers::kHalf:
      return with(prompt_kernel<D, Numbers::kHalf>);
    case Numbers::kBf16:
      return with(prompt_kernel<D, Numbers::kBf16>);
    case Numbers::kBf16Pair:
      return with(prompt_kernel<D, Numbers::kBf16Pair>);
  }
}

}  // namespace

bool has_prompt(const KvView& kv) {
#ifdef KVASIR_SM_90A
  return (kv.head_dim == 256 || kv.head_dim == 512) && has_warp_group_products() &&
         (has_flash(kv) || numbers_of(kv) != Numbers::kHalf);
#else
  return kv.n_kv < 0;
#endif
}

int prompt_kernel_blocks(const KvView& kv, int n_head, int n_rows) {
  const int group = n_head / kv.n_kv, heads = std::min(group, kMaxHeads);
  const int rows_each = kv.head_dim == 512 ? rows_of_block<512>(kv, heads) : rows_of_block<256>(kv, heads);
  return kv.n_kv * ((group + heads - 1) / heads) * ((n_rows + rows_each - 1) / rows_each);
}

void attend_prompt(const Launch& how, const AttentionArgs& args, const StepView& step,
                   const std::function<Launch()>& more) {
  const int first_pos = first_position(args);
  const auto attend = [&](const Launch& launch, const AttentionArgs& a) {
    with_head_size<256, 512>("attention prefill", a.kv.head_dim,
                             [&](auto size) { run<size.value>(launch, a, step, first_pos); });
  };
  if (!needs_page_tiles(args.kv)) return attend(how, args);
  AttentionArgs part = args;
  PageTiles& tiles = part.expanded;
  const bool open = open_page(args.kv.k_form) || open_page(args.kv.v_form),
             plain = !open_page(args.kv.k_form) || !open_page(args.kv.v_form);
  tiles.plain = plain && (tiles.end - tiles.first >= kManyPages || tile_terms(args.kv.k_form) > 1);
  if (!open && !tiles.plain) {
    tiles = {};
    return attend(how, part);
  }
  for (int first = args.expanded.first; first < args.expanded.end; first += tiles.capacity) {
    tiles.first = first;
    tiles.end = std::min(args.expanded.end, first + tiles.capacity);
    part.resumed = first > args.expanded.first;
    // Of encoded sides, the newest page is read exactly by every row that sees it.
    const int end = std::min({tiles.end, tiles.plain ? tiles.end : args.expanded.end - 1, tiles.made_from}),
              n_pages = end - first;
    if (n_pages > 0) expand_pages(part.resumed ? more() : how, args.kv, step, tiles, n_pages);
    attend(n_pages > 0 || part.resumed ? more() : how, part);
  }
}

}  // namespace kvasir::cuda
