// A block of 16 warps takes one row, up to 8 query heads of one KV head, and a share of the keys. D / 128
// warps are a team; a tile is 16 keys a warp of it. A warp keeps to 128 values of the head: it scores all
// keys of a tile over them, the team adds its shares up, each warp finds the weights of 16 keys, and each
// mixes all keys into its 128 values. A warp copies what itself will read, slices ahead, so that nothing but
// scores and weights is waited for. Teams of a block merge in order at the end.
#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/team.cuh"

// Types that it takes, as decode_form() says, in any pair; and those of keys and values alike.
#define KVASIR_DECODE_FORMS(row) \
  row(kF16) row(kQ8_0) row(kTbq2H) row(kTbq3H) row(kTbq4H) row(kTbq2Ht) row(kTbq3Ht) row(kTbq4Ht)

#define KVASIR_DECODE_PAIRS(row) \
  row(kF32) row(kBf16) row(kQ5_0) row(kQ4_0) row(kTbq3_0) row(kTbq4_0) KVASIR_DECODE_FORMS(row)

namespace kvasir::cuda {
namespace {

template <typename Forms, typename Do>
__device__ __forceinline__ void with_form(const Forms& forms, bool values, const Do& act) {
  if constexpr (Forms::kFixed) {
    static_assert(Forms::k == Forms::v);
    act(std::integral_constant<KvForm, Forms::k>{});
  } else {
    switch (values ? forms.v : forms.k) {
#define KVASIR_FORM(name) \
  case KvForm::name:      \
    return act(std::integral_constant<KvForm, KvForm::name>{});
      KVASIR_DECODE_FORMS(KVASIR_FORM)
#undef KVASIR_FORM
      default:
        __trap();  // has_decode refuses it
    }
  }
}

// Where a tile's keys and values begin.
struct TilePlace {
  const uint8_t *k, *v;
};
template <int D, bool kExact, int kTerms, typename Forms>
__device__ __forceinline__ TilePlace find_tile(const Warp<D, kTerms>& warp, const Forms& forms,
                                               const auto& tiles, int page_index) {
  const KvView& kv = warp.a.kv;
  const uint8_t *k_region, *v_region;
  const int page = tiles.page();
  if constexpr (kExact) {
    const int query_page = warp.pos / kPage;
    k_region = find_region(kv, warp.step, warp.seq, query_page, page, warp.kv_head, 0).data;
    v_region = find_region(kv, warp.step, warp.seq, query_page, page, warp.kv_head, 1).data;
  } else {
    const int64_t k_bytes = region_bytes(forms.k, D), v_bytes = region_bytes(forms.v, D);
    k_region = kv.pages + page_index * kv.page_bytes + warp.kv_head * (k_bytes + v_bytes);
    v_region = k_region + k_bytes;
  }
  const int key = tiles.first_key() % kPage;
  return {k_region + key * (D / 8 * code_bits(forms.k)), v_region + key * (D / 8 * code_bits(forms.v))};
}
// Of the keys whose weights this warp finds, g and g + 8, and their values, bits of a scale in f16: in lane
// 4 g + t of key g or, t odd, g + 8, and from t = 2 on of its value. One register, spread by shuffles behind
// the barrier that follows: a conversion would be waited for before the tile is scored (9 % of the launch).
template <int D, int kTerms, typename Forms>
__device__ __forceinline__ uint32_t load_scale(const Warp<D, kTerms>& warp, const Forms& forms,
                                               const TilePlace& place, const auto& tile) {
  const bool values = warp.lane & 2;
  const KvForm form = values ? forms.v : forms.k;
  if (!row_scales(form) || warp.part >= tile.count())
    return __half_as_ushort(__float2half_rn(block_scales(form) ? kBytesUnit : 1.0f));
  const int key = tile.first_key() % kPage, row = D / 8 * code_bits(form);
  return reinterpret_cast<const uint16_t*>(
      (values ? place.v : place.k) +
      (kPage - key) * row)[key + warp.part * kChunkKeys + warp.lane / 4 + warp.lane % 2 * 8];
}

// The tile that is copied, and the one after it, whose page is looked up a tile early: its address would
// be waited for.
template <int D, bool kExact, bool kSmall>
struct Ahead {
  Tiles<D, kExact, kSmall> tile, beyond;
  int32_t index = 0;  // of the page of `beyond`
  __device__ __forceinline__ Ahead(const auto& warp, const Tiles<D, kExact, kSmall>& first)
      : tile(first), beyond(first) {
    look_up(warp);
  }
  __device__ __forceinline__ void look_up(const auto& warp) {
    if (!kExact && beyond.more()) index = warp.table[beyond.page()];
  }
  __device__ __forceinline__ bool more() const { return tile.more(); }
  template <typename Forms>
  __device__ __forceinline__ void next(const auto& warp, const Forms& forms, TilePlace& place) {
    tile = beyond;
    if (!tile.more()) return;
    place = find_tile<D, kExact>(warp, forms, tile, index);
    beyond.next(warp);
    look_up(warp);
  }
};

// What a warp copies, slice by slice, in the order it will be used: keys of a tile, then its values.
template <int D, typename Forms, bool kExact, bool kSmall, int kSlots>
struct Copier {
  using Tile = Tiles<D, kExact, kSmall>;
  using Mine = Warp<D, terms_of<Forms>()>;
  const Mine& warp;
  Forms forms;
  Ahead<D, kExact, kSmall> ahead;
  uint32_t k_to, v_to;       // where this lane's pieces lie in a slot
  uint32_t k_from, v_from;   // and in the rows of a page
  int step, count;           // its next slice of a tile, after `count` of keys those of values
  TilePlace place;           // of the tile last begun
  uint32_t slot, last_slot;  // slot: the next to be filled, and to be read when all are full
  int slot_bytes;

  __device__ __forceinline__ Copier(const Mine& w, const Forms& f, const Tile& first)
      : warp(w), forms(f), ahead(w, first), count(first.count()) {
    step = 2 * count;
    with_form(forms, false, [&](auto form) {
      lane_copy<D, form.value, false>(warp.part, warp.lane, k_from, k_to);
      slot_bytes = Slice<form.value>::kBytes;
    });
    with_form(forms, true, [&](auto form) {
      lane_copy<D, form.value, true>(warp.part, warp.lane, v_from, v_to);
      slot_bytes = max(slot_bytes, Slice<form.value>::kBytes);
    });
    slot = warp.shared.ring_of(warp.team * Warp<D>::kTeam + warp.part);
    last_slot = slot + (kSlots - 1) * slot_bytes;
  }
  template <bool kValues>
  __device__ __forceinline__ void copy() {
    with_form(forms, kValues, [&](auto form) {
      constexpr KvForm F = form.value;
      const int chunk = step - (kValues ? count : 0), key = ahead.tile.first_key() + chunk * kChunkKeys,
                low = warp.first_pos - key, high = warp.pos + 1 - key;
      const uint8_t* at = (kValues ? place.v : place.k) + chunk * (kChunkKeys * (D / 8) * code_bits(F));
      copy_slice<D, F, kValues>(slot, slot + (kValues ? v_to : k_to), at + (kValues ? v_from : k_from),
                                warp.lane, low, high);
      if constexpr (block_scales(F))
        copy_block_scales<D, F, kValues>(slot, at - key % kPage * (D / 8 * code_bits(F)), key % kPage,
                                         warp.part, warp.lane, low, high);
    });
  }
  __device__ __forceinline__ void next() {
    if (step == 2 * count) step = 0, ahead.next(warp, forms, place);
    if (ahead.more()) {
      if (step < count)
        copy<false>();
      else
        copy<true>();
      ++step;
    }
    commit_copies();
    slot += slot == last_slot ? -(kSlots - 1) * slot_bytes : slot_bytes;
  }
  __device__ __forceinline__ void wait() const {
    wait_copies<kSlots - 1>();
    __syncwarp();
  }
  // The slot has been read.
  __device__ __forceinline__ void release() {
    __syncwarp();
    next();
  }
};

// Scores of 16 keys of a tile over this warp's values: a share to their warp, or its own.
template <int D, int kTerms, typename Forms>
__device__ __forceinline__ void score(const Warp<D, kTerms>& warp, const Forms& forms, uint32_t slot,
                                      int chunk, const uint32_t (&q)[8 * kTerms][2], float (&own)[4]) {
  float s[2][4] = {};
  with_form(forms, false, [&](auto form) {
    score_slice<form.value>(slot, q, warp.shared.k_table, Forms::kFixed ? warp.lane : anew(warp.lane), s);
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) s[0][i] += s[1][i];
#pragma unroll
  for (int i = 0; i < 4; ++i) own[i] = chunk == warp.part ? s[0][i] : own[i];
  if (chunk != warp.part)
    store_shared4(warp.share_at(chunk, (warp.part - chunk - 1) & (Warp<D>::kTeam - 1)), s[0]);
}
template <int D, int kTerms, typename Forms>
__device__ __forceinline__ void mix(const Warp<D, kTerms>& warp, const Forms& forms, uint32_t slot, int chunk,
                                    Sums& sums) {
  uint32_t w[2 * kTerms];
  if constexpr (kTerms == 2) {
    const uint4 pairs = load_shared4(warp.weights_at(chunk) + warp.lane * 16);
    w[0] = pairs.x, w[1] = pairs.y, w[2] = pairs.z, w[3] = pairs.w;
  } else {
    const uint2 pairs = load_shared2(warp.weights_at(chunk) + warp.lane * 8);
    w[0] = pairs.x, w[1] = pairs.y;
  }
  with_form(forms, true, [&](auto form) {
    mix_slice<form.value>(slot, w, warp.shared.v_table, Forms::kFixed ? warp.lane : anew(warp.lane),
                          sums.out);
  });
}

// The queries that a page is read with; `base`: those of shifted pages. Without a shift nothing is looked at:
// what was kept in memory took 8 % of q8_0's launch to come back, once a tile.
template <int D, int kTerms>
__device__ __forceinline__ void choose_queries(const Warp<D, kTerms>& warp, int page,
                                               uint32_t (&q)[8 * kTerms][2], bool& base) {
  if (warp.shift == 0) return;
  const bool shifted = page >= warp.keep_pages;
  if (shifted != base) load_queries(warp, shifted, q);
  base = shifted;
}

// The team's tiles that are read exactly, or encoded. `prepare`: until then nothing of this step may be read.
// When the step has one row, the first tile may be copied before: earlier launches of the step write the
// query's own page only (pages are encoded by the last), and a step's first launch begins when the step
// before has ended, so that any other page is as it will stay. What is copied early never leaves that tile.
template <int D, bool kExact, bool kSmall, int kSlots, int kTerms, typename Forms, typename Prepare>
__device__ __forceinline__ void run_pass(const Warp<D, kTerms>& warp, const Forms& forms, int split,
                                         const Prepare& prepare, uint32_t (&q)[8 * kTerms][2], bool& base,
                                         Sums& sums) {
  using Copies = Copier<D, Forms, kExact, kSmall, kSlots>;
  // What is copied early is of one tile: where tiles are small a team has one.
  static_assert(kSlots >= 1 && kSlots <= 2 * Copies::Tile::kChunks);
  constexpr bool kLoaded = !Forms::kFixed || row_scales(known_form<Forms>());
  typename Copies::Tile tiles(warp, split);
  const int count = tiles.count();
  if (kExact && !tiles.more()) return;
  Copies copies(warp, forms, tiles);
  const bool early = warp.a.settled && tiles.more() && tiles.page() != warp.pos / kPage;
#pragma unroll 1
  for (int i = 0; i <= kSlots; ++i) {
    if (i == (early ? kSlots : 0)) prepare();
    if (i < kSlots) copies.next();
  }
#pragma unroll 1
  for (; tiles.more(); tiles.next(warp)) {
    choose_queries(warp, tiles.page(), q, base);
    float own[4] = {};
    const uint32_t scale = load_scale(warp, forms, copies.place, tiles);
#pragma unroll 1
    for (int step = 0; step < 2 * count; ++step) {
      copies.wait();
      if (step < count) {
        score(warp, forms, copies.slot, step, q, own);
      } else {
        if (step == count) weigh_tile<D, kLoaded>(warp, tiles, own, scale, sums);
        mix(warp, forms, copies.slot, step - count, sums);
      }
      copies.release();
    }
  }
  wait_copies<0>();
  __syncwarp();
}

// Pages whose slots take a whole tile: what has been read makes room for its like of the next tile, so that a
// copy is a few instructions.
template <int D, KvForm F>
struct Steady {
  using Forms = Known<F, F>;
  static constexpr int kChunks = Warp<D>::kTeam, kStride = kChunkKeys * (D / 8) * code_bits(F),
                       kSlot = Slice<F>::kBytes;
  const Warp<D>& warp;
  Ahead<D, false, false> ahead;
  TilePlace place{};  // of the tile that is copied
  const uint8_t* at;  // this lane's keys of it
  uint32_t ring, from, k_to, v_to;

  __device__ __forceinline__ Steady(const Warp<D>& w, const Tiles<D, false>& first)
      : warp(w), ahead(w, first) {
    lane_copy<D, F, false>(warp.part, warp.lane, from, k_to);
    lane_copy<D, F, true>(warp.part, warp.lane, from, v_to);
    ring = warp.shared.ring_of(warp.team * kChunks + warp.part);
    k_to += ring, v_to += ring + kChunks * kSlot;
  }
  __device__ __forceinline__ void next() {
    ahead.next(warp, Forms{}, place);
    at = place.k + from;
  }
  template <bool kValues>
  __device__ __forceinline__ void copy(int c) {
    constexpr int kRegion = int(region_bytes(F, D));  // values follow the keys
    if (ahead.more())
      copy_slice<D, F, kValues>(0, (kValues ? v_to : k_to) + c * kSlot,
                                at + (kValues ? kRegion : 0) + c * kStride, warp.lane, 0, 0);
    commit_copies();
  }
  __device__ __forceinline__ void wait() const {
    wait_copies<2 * kChunks - 1>();
    __syncwarp();
  }
  // All keys of the tile: this warp's shares, and its own.
  __device__ __forceinline__ void score_tile(const uint32_t (&q)[8][2], float (&own)[4]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      wait();
      score(warp, Forms{}, ring + c * kSlot, c, q, own);
      __syncwarp();
      copy<false>(c);
    }
  }
  __device__ __forceinline__ void mix_tile(Sums& sums) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      wait();
      mix(warp, Forms{}, ring + (kChunks + c) * kSlot, c, sums);
      __syncwarp();
      copy<true>(c);
    }
  }
};

// run_pass of such pages.
template <int D, KvForm F, typename Prepare>
__device__ __forceinline__ void run_steady_pass(const Warp<D>& warp, int split, const Prepare& prepare,
                                                uint32_t (&q)[8][2], bool& base, Sums& sums) {
  Tiles<D, false> tiles(warp, split);
  Steady<D, F> steady(warp, tiles);
  const bool early = warp.a.settled && tiles.more() && tiles.page() != warp.pos / kPage;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if (i == int(early)) prepare();
    if (i == 1) break;
    steady.next();
#pragma unroll
    for (int c = 0; c < steady.kChunks; ++c) steady.template copy<false>(c);
#pragma unroll
    for (int c = 0; c < steady.kChunks; ++c) steady.template copy<true>(c);
  }
#pragma unroll 1
  for (; tiles.more(); tiles = steady.ahead.tile) {
    choose_queries(warp, tiles.page(), q, base);
    float own[4] = {};
    const uint32_t scale = load_scale(warp, Known<F, F>{}, steady.place, tiles);
    steady.next();
    steady.score_tile(q, own);
    weigh_tile<D, true>(warp, tiles, own, scale, sums);
    steady.mix_tile(sums);
  }
  wait_copies<0>();
  __syncwarp();
}

template <int D, typename Forms>
__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ StepView step,
                  int head_tiles) {
  extern __shared__ __align__(16) uint8_t memory[];
  let_next_start();
  if (shared_address(memory) > kReserved) __trap();  // the layout counts on it
  constexpr int kTerms = terms_of<Forms>();
  Warp<D, kTerms> warp = find_warp<D, kTerms>(a, step, head_tiles);
  const int split = int(blockIdx.x);
  const int64_t first_part = (int64_t(warp.out_row) * a.n_head + warp.first_head) * a.n_splits + split;
  constexpr bool kSteady = Forms::kFixed && coded(known_form<Forms>());
  // Whole tiles have a loop of their own: q8_0 takes 5 to 13 % less time, tbq4_0 4 %, q4_0 4 % more.
  constexpr bool kLengthKnown = Forms::kFixed && known_form<Forms>() != KvForm::kQ4_0;
  if (!has_work<D, !kSteady>(warp, split)) {
    wait_for_inputs();
    if (threadIdx.x < unsigned(warp.n_heads)) {
      const int64_t part = first_part + int64_t(threadIdx.x) * a.n_splits;
      a.partial_sums[2 * part] = -INFINITY;
      a.partial_sums[2 * part + 1] = 0;
    }
    return;
  }
  Forms forms;
  if constexpr (!Forms::kFixed) forms = {a.kv.k_form, a.kv.v_form};
  warp.shared = lay_out(memory, forms);
  uint32_t q[8 * kTerms][2];
  bool base = false;
  Sums sums;
  const auto prepare = [&] {
    with_form(forms, false, [&](auto form) { fill_table<form.value>(warp.shared.k_table, D); });
    if constexpr (!Forms::kFixed)
      if (forms.v != forms.k)
        with_form(forms, true, [&](auto form) { fill_table<form.value>(warp.shared.v_table, D); });
    wait_for_inputs();
    if constexpr (kTerms == 1) {
      share_queries(warp, q);
    } else {
      load_queries(warp, false, q);
      __syncthreads();
    }
  };
  constexpr int kTeam = Warp<D>::kTeam;
  constexpr KvForm kForm = known_form<Forms>();
  constexpr int kRing = Forms::kFixed ? table_bytes(kForm) == 65536 ? 8192
                                        : table_bytes(kForm)        ? 10240
                                                                    : 12288
                                      : 8192;
  constexpr int kSlots = Forms::kFixed ? slots_of(kForm, kRing, kTeam) : 2;
  if constexpr (kSteady) {
    static_assert(kSlots == 2 * kTeam);
    run_steady_pass<D, kForm>(warp, split, prepare, q, base, sums);
  } else if (kLengthKnown && warp.unit == kTeam) {
    run_pass<D, false, false, kSlots>(warp, forms, split, prepare, q, base, sums);
  } else {
    run_pass<D, false, true, kSlots>(warp, forms, split, prepare, q, base, sums);
  }
  if constexpr (!Forms::kFixed || open_page(kForm))
    run_pass<D, true, false, Forms::kFixed ? 2 : 1>(
        warp, Known<KvForm::kF16, KvForm::kF16>{}, split, [] {}, q, base, sums);
  leave_parts<D>(warp, first_part, sums);
}

template <int D, typename Forms>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  const int tiles = decode_head_tiles(args.n_head / args.kv.n_kv);
  launch(how, dim3(unsigned(args.n_splits), unsigned(args.kv.n_kv * tiles), unsigned(args.n_rows)),
         dim3(kThreads), kSharedBytes, decode_kernel<D, Forms>, args, step, tiles);
}
// Types of keys and values that are the same are known to the kernel.
template <int D>
void run(const Launch& how, const AttentionArgs& args, const StepView& step) {
  if (args.kv.k_form != args.kv.v_form) return run<D, Read>(how, args, step);
  switch (args.kv.k_form) {
#define KVASIR_FORM(name) \
  case KvForm::name:      \
    return run<D, Known<KvForm::name, KvForm::name>>(how, args, step);
    KVASIR_DECODE_PAIRS(KVASIR_FORM)
#undef KVASIR_FORM
    default:
      refuse_cache("attention decode", args.kv);
  }
}

}  // namespace

bool has_decode(const KvView& kv) {
  const bool pair = kv.k_form == kv.v_form && pair_form(kv.k_form);
  return (pair || (decode_form(kv.k_form) && decode_form(kv.v_form))) &&
         (kv.head_dim == 128 || kv.head_dim == 256 || kv.head_dim == 512) &&
         shared_memory_limit() >= size_t(kSharedBytes);
}

void attend_decode(const Launch& how, const AttentionArgs& args, const StepView& step) {
  with_head_size<128, 256, 512>("attention decode", args.kv.head_dim,
                                [&](auto size) { run<size.value>(how, args, step); });
}

}  // namespace kvasir::cuda
