#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/cluster.cuh"
#include "backends/cuda/kernels/kv_append/fits.cuh"
#include "backends/cuda/kernels/kv_forms/load.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/near/heads.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kRanks = 8;  // blocks of a cluster
constexpr int kWarps = 10, kThreads = 32 * kWarps, kMathWarps = 8;
constexpr int kHeads = 8;  // of a block
constexpr int kSideThreads = kThreads / 2;
constexpr float kUnit = 4;  // of rows whose values f16 cannot hold: levels times scales are below 4 x 65504

// The types of a launch: the same for keys and values and known when compiled, or read from the arguments.
// Known ones need no calls, around which a warp would put its registers into memory.
template <KvForm F>
struct Same {
  static constexpr bool kKnown = true;
  static constexpr KvForm kForm = F;
  static constexpr bool kPlain = !open_page(F);  // rows are stored as they are multiplied
  static constexpr int kTerms = F == KvForm::kBf16 ? 2 : 1;
  static __device__ __forceinline__ constexpr KvForm of(const NearArgs&, int) { return F; }
};
struct Mixed {
  static constexpr bool kKnown = false, kPlain = false;
  static constexpr KvForm kForm = KvForm::kTbq4H;
  static constexpr int kTerms = 1;
  static __device__ __forceinline__ KvForm of(const NearArgs& a, int side) {
    return side ? a.kv.v_form : a.kv.k_form;
  }
};

// Of a type: bytes of the levels of a code book, or the levels of a trellis.
struct Levels {
  alignas(16) uint16_t trellis[512];
  alignas(16) uint8_t half[2][8];  // low, high
  __device__ __forceinline__ LevelBytes read() const {
    const uint4 bytes = *reinterpret_cast<const uint4*>(half);
    return {{bytes.x, bytes.y}, {bytes.z, bytes.w}, nullptr, trellis};
  }
};

struct NoLevels {};

// Shared memory of a block: kKeys keys (64, or 128 for which two blocks share a multiprocessor). Of 128 keys
// the second half of the values lies where the first half of the keys was until it was scored. bf16 has
// queries and weights in two terms, so that they lose no bits that f16 would keep.
template <int D, typename F, int kN>
struct Shared {
  using Forms = F;
  static constexpr int kDim = D, kKeys = kN, kFirst = kN > 64 ? kN / 2 : kN;  // values loaded with the keys
  static constexpr int kPhases = kN / kFirst;
  static constexpr int kTerms = F::kTerms, kPages = kN / kPage + 1;
  static constexpr int kParts = kMathWarps * 16 / kN;  // of the head, that scores come in
  __half rows[kN + kFirst][D + 8];                     // keys, values; then Mixed over keys
  __half q[kTerms][kHeads][D + 8];
  float score[kParts][kN][kHeads + 2];
  float largest[kHeads], total[kHeads];
  alignas(16) __half fresh[kFirst < kN ? D + 8 : 8];          // the new value, until its place is free
  std::conditional_t<F::kPlain, NoLevels, Levels> levels[2];  // keys, values
  alignas(16) uint8_t codes[2][F::kPlain ? 16 : D];           // of a new row, where its fit is in doubt
  Region region[kPages][2];                                   // of the pages of its keys; keys, values

  struct Mixed {
    float sums[kHeads][D];
    __half weight[kTerms][kHeads][kN + 8];
    float merged[D];
  };
  static_assert(sizeof(Mixed) <= sizeof(__half) * kFirst * (D + 8));
  __device__ __half* key(int i) { return rows[i]; }
  __device__ __half* value(int i) { return rows[kFirst < kN && i >= kFirst ? i - kFirst : kN + i]; }
  __device__ Mixed& mixed() { return *reinterpret_cast<Mixed*>(rows[kN - kFirst]); }
};

// The keys of one block: [begin, end).
struct Keys {
  int begin, end, pos;
  __device__ __forceinline__ int page_of(int key_pos) const { return key_pos / kPage - begin / kPage; }
};

// Rows first, first + 1, .. (n of them) of a page as it is stored, by the threads of a side, `t` of them;
// true when a value of this thread is infinite. Their loads are in flight together.
template <int D, KvForm F>
__device__ __forceinline__ bool load_coded(const uint8_t* data, int first, int n, __half by,
                                           const Levels* shared_levels, const float* tcq_level, __half* to,
                                           int t) {
  constexpr int kUnits = D / 8, kBatch = 7;
  const LevelBytes levels = shared_levels->read();
  KvTables tables;
  tables.tcq_level = tcq_level;
  bool infinite = false;
#pragma unroll 1
  for (int begin = t; begin < n * kUnits; begin += kBatch * kSideThreads) {
    RawUnit raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (const int unit = begin + i * kSideThreads; unit < n * kUnits)
        raw[i] = load_raw_parts<D, F>(data, first + unit / kUnits, unit % kUnits);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = begin + i * kSideThreads;
      if (unit >= n * kUnits) break;
      raw[i] = join_unit<D, F>(raw[i], first + unit / kUnits, unit % kUnits);
      raw[i].scale = __hmul(raw[i].scale, by);
      const int4 v = expand_raw<F>(raw[i], levels, tables);
      infinite |= any_infinite(v);
      *reinterpret_cast<int4*>(to + unit / kUnits * (D + 8) + unit % kUnits * 8) = v;
    }
  }
  return infinite;
}

// Not inlined: a launch of mixed types fetches the code of its own ones only.
template <int D, KvForm F>
__device__ __noinline__ bool call_load_coded(const uint8_t* data, int first, int n, __half by,
                                             const Levels* levels, __half* to, int t) {
  return load_coded<D, F>(data, first, n, by, levels, nullptr, to, t);
}

template <int D, typename Forms>
__device__ __forceinline__ bool load_page(const Region& from, int first, int n, float unit,
                                          const Levels* levels, const float* tcq_level, __half* to, int t) {
  constexpr int kUnits = D / 8;
  if (Forms::kPlain || from.form == KvForm::kF16) {
#pragma unroll 2
    for (int i = t; i < n * kUnits; i += kSideThreads)
      copy_async(to + i / kUnits * (D + 8) + i % kUnits * 8, from.data + (first * kUnits + i) * 16);
    return false;
  }
  const __half by = __float2half_rn(1 / unit);
  if constexpr (Forms::kKnown && !Forms::kPlain) {
    return load_coded<D, Forms::kForm>(from.data, first, n, by, levels, tcq_level, to, t);
  } else if constexpr (!Forms::kKnown) {
    switch (from.form) {
#define KVASIR_LOAD(name) \
  case KvForm::name:      \
    return call_load_coded<D, KvForm::name>(from.data, first, n, by, levels, to, t)
      KVASIR_LOAD(kQ8_0);
      KVASIR_LOAD(kTbq2H);
      KVASIR_LOAD(kTbq3H);
      KVASIR_LOAD(kTbq4H);
#undef KVASIR_LOAD
      default:
        break;
    }
  }
  return false;
}

// Where the keys or values of a page lie. Sizes are the launch's: found from the types here they would be
// most of its code, and both tables are read at once.
template <typename Forms>
__device__ __forceinline__ Region find_rows(const NearArgs& a, const int32_t* tables, int stride,
                                            int query_page, int page, int kv_head, int side) {
  const KvView& kv = a.kv;
  const KvForm form = Forms::of(a, side);
  const int encoded = tables[page], exact = open_page(form) ? tables[stride + page] : -1;
  const bool reads_exact = page == query_page || page < kv.exact_first || query_page - page <= kv.exact_last;
  const int at = kv_head * a.exact_each + (side ? a.exact_before_values : 0);
  if (open_page(form) && reads_exact && exact >= 0)
    return {(exact < kv.n_exact ? kv.exact + exact * kv.exact_page_bytes
                                : kv.step_exact + int64_t(exact - kv.n_exact) * kv.exact_page_bytes) +
                at,
            KvForm::kF16};
  return {kv.pages + encoded * kv.page_bytes + kv_head * a.region_each + (side ? a.region_keys : 0), form};
}

// Keys or values [begin, end) of a block as earlier steps stored them, encoded rows in units of `unit`, by
// the threads of a side, `t` of them; true when a value is infinite.
template <typename S>
__device__ __forceinline__ bool load_rows(const NearArgs& a, const Keys& keys, int side, int begin, int end,
                                          float unit, S& shared, int t) {
  const Levels* levels = nullptr;
  if constexpr (!S::Forms::kPlain) levels = &shared.levels[side];
  bool infinite = false;
#pragma unroll 1
  while (begin < end) {
    const int key = keys.begin + begin, first = key % kPage, rows = min(end - begin, kPage - first);
    infinite |= load_page<S::kDim, typename S::Forms>(shared.region[keys.page_of(key)][side], first, rows,
                                                      unit, levels, a.kv.tables.tcq_level,
                                                      side ? shared.value(begin) : shared.key(begin), t);
    begin += rows;
  }
  return infinite;
}
// Values past the end, up to a whole product, are zero: their weights are, too.
template <typename S>
__device__ __forceinline__ void clear_values(int begin, int end, S& shared, int t, int step) {
  constexpr int kUnits = S::kDim / 8;
  for (int i = begin * kUnits + t; i < end * kUnits; i += step)
    *reinterpret_cast<uint4*>(shared.value(i / kUnits) + i % kUnits * 8) = {0, 0, 0, 0};
}

// What is loaded before the queries are there: keys, and values as far as they have room beside them; then
// the other values, when the keys in their place have been scored. One loop's body: its code is fetched once.
template <typename S>
__device__ __forceinline__ bool load_phase(const NearArgs& a, const Keys& keys, int phase, float unit,
                                           S& shared) {
  const int half = int(threadIdx.x) / kSideThreads, t = int(threadIdx.x) % kSideThreads;
  const int n = keys.end - keys.begin, ready = min(keys.end, keys.pos) - keys.begin;
  int begin = 0, end = half ? min(ready, S::kFirst) : ready, side = half;
  if (S::kFirst < S::kKeys && phase == 1) {
    const int middle = S::kFirst + max(ready - S::kFirst + 1, 0) / 2;
    begin = half ? middle : S::kFirst, end = half ? ready : min(ready, middle), side = 1;
  }
  const bool infinite = load_rows(a, keys, side, begin, end, unit, shared, t);
  if (phase == 0) {
    if (half && n < S::kFirst) clear_values(n, (n + 15) / 16 * 16, shared, t, kSideThreads);
  } else if (n > S::kFirst) {
    clear_values(n, (n + 15) / 16 * 16, shared, int(threadIdx.x), kThreads);
    if (ready < n && threadIdx.x < S::kDim / 8)
      reinterpret_cast<uint4*>(shared.value(ready))[threadIdx.x] =
          reinterpret_cast<const uint4*>(shared.fresh)[threadIdx.x];
  }
  return infinite;
}

// Once more, in units of kUnit: what was loaded by the end of `phase`, but keys that values have replaced.
template <typename S>
__device__ __noinline__ void load_in_units(const NearArgs& a, const Keys& keys, int phase, S& shared) {
  const int half = int(threadIdx.x) / kSideThreads, t = int(threadIdx.x) % kSideThreads;
  const int ready = min(keys.end, keys.pos) - keys.begin;
  __syncthreads();
#pragma unroll 1
  for (int p = 0; p <= phase; ++p) {
    if (p < phase) {
      if (half) load_rows(a, keys, 1, 0, min(ready, S::kFirst), kUnit, shared, t);
    } else {
      load_phase(a, keys, p, kUnit, shared);
    }
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
}

// Two values as a row is stored and multiplied.
template <bool kBf16>
__device__ __forceinline__ uint32_t stored_pair(float low, float high) {
  if constexpr (kBf16) return bf16_pair(low, high);
  return as_word(__floats2half2_rn(low, high));
}
template <bool kBf16>
__device__ __forceinline__ void multiply_as(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16)
    multiply_bf16(c, a, b0, b1);
  else
    multiply(c, a, b0, b1);
}

// What is the same for every row: levels of both types.
template <typename S>
__device__ __forceinline__ void load_levels(const NearArgs& a, S& shared) {
  using Forms = typename S::Forms;
  constexpr int D = S::kDim;
  const int side = int(threadIdx.x) / kSideThreads, t = int(threadIdx.x) % kSideThreads;
  const KvForm form = Forms::of(a, side);
  if constexpr (Forms::kPlain) {
  } else if (trellis(form)) {
    const uint16_t* from = form == KvForm::kTbq2Ht   ? trellis_levels<2>()
                           : form == KvForm::kTbq3Ht ? trellis_levels<3>()
                                                     : trellis_levels<4>();
    if (t < (form == KvForm::kTbq2Ht ? 32 : 64))
      *reinterpret_cast<uint4*>(shared.levels[side].trellis + 8 * t) =
          __ldg(reinterpret_cast<const uint4*>(from) + t);
  } else if (const BookLevels book = book_levels(form, D); book.level && t < 8) {
    uint32_t h = __half_as_ushort(__float2half_rn(book.level[t] * book.unit));
    asm volatile("" : "+r"(h));  // nvcc 13 takes the low byte of an f16's bits for the number as a byte
    shared.levels[side].half[0][t] = uint8_t(h);
    shared.levels[side].half[1][t] = uint8_t(h >> 8);
  }
}

// A made row of the queries (of a head), keys or values into shared memory; a new key or value also into
// `cache`. True when the cache can hold it.
template <typename S>
__device__ __forceinline__ bool store_made(const NearArgs& a, const float (&x)[2][S::kDim / 64], bool query,
                                           int side, int lane, __half* to, __half* cache, S& shared) {
  using Forms = typename S::Forms;
  constexpr int H = S::kDim / 64;
  constexpr bool kBf16 = Forms::kForm == KvForm::kBf16;
  constexpr uint32_t kExponent = kBf16 ? 0x7f80u : 0x7c00u;
  uint32_t h[2][(H + 1) / 2];
  bool finite = true, doubtful = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = 32 * H * half + lane * H;
    pack_row<kBf16>(x[half], h[half]);
    store_words<H>(to + at, h[half]);
    if (cache) store_words<H>(cache + at, h[half]);
#pragma unroll
    for (int i = 0; i < H; ++i) {
      finite &= (h[half][i / 2] >> (16 * (i % 2)) & kExponent) != kExponent;
      doubtful |= fabsf(x[half][i]) > kAlwaysFits;
    }
    if constexpr (S::kTerms == 2) {
#pragma unroll
      for (int i = 0; i < H; i += 2) h[half][i / 2] = bf16_rest(h[half][i / 2], x[half][i], x[half][i + 1]);
      if (query) store_words<H>(to + int(sizeof(shared.q[0]) / sizeof(__half)) + at, h[half]);
    }
  }
  if (!cache) return true;
  if (const KvForm form = Forms::of(a, side);
      open_page(form) && __any_sync(~0u, doubtful) && __all_sync(~0u, finite)) {
    __syncwarp();
    finite = stored_row_fits(form, cache, S::kDim, lane, shared.codes[side]);
  }
  return finite;
}

// The heads of this step: queries for every block; the new key and value where its place is, and into the
// cache. Warps below kHeads make a query head each, the next two the key and the value.
template <typename S>
__device__ __forceinline__ void make_heads(const NearArgs& a, const Keys& keys, S& shared, int kv_head, int r,
                                           int step_row) {
  using Forms = typename S::Forms;
  constexpr int D = S::kDim, H = D / 64;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, group = a.n_head / a.kv.n_kv;
  const bool query = warp < kHeads, owns = keys.begin <= keys.pos && keys.pos < keys.end,
             works = query ? warp < group : owns;
  const int side = query ? 0 : warp - kHeads, head = query ? kv_head * group + warp : kv_head;
  const NearJob& job = a.jobs[query ? 0 : side + 1];
  const bool made = job.in;
  const HeadPlan<H> plan =
      plan_head<H>(job, a.q, a.n_head, side, head, r, step_row, works && (query || made), lane);
  const int place = keys.pos - keys.begin, token = keys.pos % kPage;
  const Region& region = shared.region[max(keys.page_of(keys.pos), 0)][side];
  __half* to = query                                        ? shared.q[0][warp]
               : !side                                      ? shared.key(place)
               : S::kFirst < S::kKeys && place >= S::kFirst ? shared.fresh
                                                            : shared.value(place);
  wait_for_inputs();
  if (!query && !owns) return;
  if (!query && !made) {  // another layer stored it, as f16: its page is not full
#pragma unroll 1
    for (int i = lane; i < D / 8; i += 32) copy_async(to + 8 * i, region.data + (token * D + 8 * i) * 2);
    return;
  }
  float x[2][H] = {};
  if (works) {
    const KvBasis basis = made ? basis_of(Forms::of(a, side)) : KvBasis::kModel;
    make_head<H, Forms::kKnown>(plan, basis, side, lane, x);
  }
  __half* cache = query ? nullptr : reinterpret_cast<__half*>(const_cast<uint8_t*>(region.data)) + token * D;
  if (!store_made(a, x, query, side, lane, to, cache, shared) &&
      atomicCAS(a.heads.fault, -1, a.heads.layer) == -1)
    a.heads.fault[1] = step_row;
}

// score[part][key][head]: a warp takes 16 keys over a part of the head. Sums of every second pair of products
// are their own: a product waits for the one whose sums it adds to.
template <typename S>
__device__ __forceinline__ void multiply_keys(S& shared, int n) {
  constexpr int kChunks = S::kKeys / 16, kEach = S::kDim / S::kParts;
  constexpr bool kBf16 = S::Forms::kForm == KvForm::kBf16;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, key0 = warp % kChunks * 16,
            part = warp / kChunks;
  if (warp >= kMathWarps || key0 >= n) return;
  float s[4][4] = {};
  const __half* key = shared.key(key0 + lane % 16) + part * kEach + lane / 16 * 8;
  const int at = part * kEach + lane / 8 * 8;
#pragma unroll
  for (int k = 0; k < kEach; k += 32) {
    uint32_t a[2][4];
    load_tiles(a[0], key + k);
    load_tiles(a[1], key + k + 16);
#pragma unroll
    for (int term = 0; term < S::kTerms; ++term) {
      uint32_t q[4];
      load_tiles(q, shared.q[term][lane % 8] + at + k);
      multiply_as<kBf16>(s[k / 16 % 4], a[0], q[0], q[1]);
      multiply_as<kBf16>(s[k / 16 % 4 + 1], a[1], q[2], q[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) s[0][i] = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
  *reinterpret_cast<float2*>(&shared.score[part][key0 + lane / 4][lane % 4 * 2]) = {s[0][0], s[0][1]};
  *reinterpret_cast<float2*>(&shared.score[part][key0 + lane / 4 + 8][lane % 4 * 2]) = {s[0][2], s[0][3]};
}

// Scores or weights of rows that are in units of kUnit; f16 rows are as they are.
template <typename S>
__device__ __noinline__ void apply_units(const Keys& keys, int side, S& shared) {
  __syncthreads();
#pragma unroll 1
  for (int i = int(threadIdx.x); i < (keys.end - keys.begin) * kHeads; i += kThreads) {
    const int key = i / kHeads, head = i % kHeads;
    if (shared.region[keys.page_of(keys.begin + key)][side].form == KvForm::kF16) continue;
    if (side) {
      __half& w = shared.mixed().weight[0][head][key];
      w = __hmul(w, __float2half_rn(kUnit));
    } else {
      for (int part = 0; part < S::kParts; ++part) shared.score[part][key][head] *= kUnit;
    }
  }
}

// The greatest of a warp's values, none of them NaN, as integers of the same order.
__device__ __forceinline__ float warp_greatest(float v) {
  const auto ordered = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(ordered(__reduce_max_sync(~0u, ordered(__float_as_int(v)))));
}

// A warp a head; what this lane's keys add to the sum of its weights.
template <typename S>
__device__ __forceinline__ float softmax(const NearArgs& a, S& shared, int n) {
  constexpr int kKeys = S::kKeys;
  const int head = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (head >= kHeads) return 0;
  float s[kKeys / 32], most = -INFINITY, total = 0;
#pragma unroll
  for (int i = 0; i < kKeys / 32; ++i) {
    const int key = lane + 32 * i;
    s[i] = -INFINITY;
    if (key < n) {
      s[i] = shared.score[0][key][head];
#pragma unroll
      for (int part = 1; part < S::kParts; ++part) s[i] += shared.score[part][key][head];
      s[i] *= a.scale;
      if (a.softcap > 0)
        s[i] = a.softcap * (1.0f - __fdividef(2.0f, 1.0f + __expf(__fdividef(2.0f * s[i], a.softcap))));
    }
    most = fmaxf(most, s[i]);
  }
  most = warp_greatest(most);
  if (lane == 0) shared.largest[head] = most;
#pragma unroll
  for (int i = 0; i < kKeys / 32; ++i) {
    const float p = s[i] == -INFINITY ? 0.0f : __expf(s[i] - most);
    total += p;
    auto& weight = shared.mixed().weight;
    if constexpr (S::kTerms == 2) {
      const uint32_t h = stored_pair<true>(p, 0);
      reinterpret_cast<uint16_t&>(weight[0][head][lane + 32 * i]) = uint16_t(h);
      reinterpret_cast<uint16_t&>(weight[1][head][lane + 32 * i]) = uint16_t(bf16_rest(h, p, 0));
    } else {
      weight[0][head][lane + 32 * i] = __float2half_rn(p);
    }
  }
  return total;
}

// Sums of values, 16 of them by a warp at a time and twice that in flight.
template <typename S>
__device__ __forceinline__ void multiply_values(S& shared, int n) {
  constexpr int D = S::kDim, kStep = 16 * kMathWarps, kAtOnce = D > kStep ? 2 : 1;
  constexpr bool kBf16 = S::Forms::kForm == KvForm::kBf16;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp >= kMathWarps) return;
  const int row = lane / 16 * 8 + lane % 8;
#pragma unroll 1
  for (int d = warp * 16; d < D; d += kAtOnce * kStep) {
    float s[kAtOnce][2][4] = {};
#pragma unroll
    for (int k = 0; k < S::kKeys; k += 32) {
      if (k >= n) break;
      uint32_t w[S::kTerms][4];
#pragma unroll
      for (int term = 0; term < S::kTerms; ++term)
        load_tiles(w[term], &shared.mixed().weight[term][lane % 8][k + lane / 8 * 8]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half && k + 16 >= n) break;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          uint32_t a[4];
          load_tiles_transposed(
              a, shared.value(k + 16 * half) + row * (D + 8) + d + i * kStep + lane / 8 % 2 * 8);
#pragma unroll
          for (int term = 0; term < S::kTerms; ++term)
            multiply_as<kBf16>(s[i][half], a, w[term][2 * half], w[term][2 * half + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float* to = shared.mixed().sums[lane % 4 * 2] + d + i * kStep + lane / 4;
      to[0] = s[i][0][0] + s[i][1][0], to[D] = s[i][0][1] + s[i][1][1];
      to[8] = s[i][0][2] + s[i][1][2], to[D + 8] = s[i][0][3] + s[i][1][3];
    }
  }
}

// Threads that hold the values of a head, kEach following ones each.
template <int D>
struct Spread {
  static constexpr int kEach = D > 256 ? 2 : 1, kThreads = D / kEach, kWarps = kThreads / 32;
};

// Out of the head-wide basis: within a warp's values, then those of a place in all warps by one thread.
template <int D, typename S>
__device__ __forceinline__ void unrotate(float (&x)[Spread<D>::kEach], S& shared, float* out) {
  constexpr int kEach = Spread<D>::kEach, kWarps = Spread<D>::kWarps, kPart = D / kWarps;
  const int t = int(threadIdx.x);
  lane_hadamard(x);
#pragma unroll
  for (int o = 1; o < 32; o *= 2) exchange(x, t, o);
  if (t < Spread<D>::kThreads)
#pragma unroll
    for (int e = 0; e < kEach; ++e) shared.mixed().merged[t * kEach + e] = x[e];
  uint32_t signs = 0;
  if (t < kPart)
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
      signs |= (kHeadTables.signs[1][(i * kPart + t) / 32] >> (t % 32) & 1u) << i;
  __syncthreads();
  if (t >= kPart) return;
  float v[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) v[i] = shared.mixed().merged[i * kPart + t];
  lane_hadamard(v);
  flip_signs(signs, v);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) out[i * kPart + t] = v[i] * kHeadNorm<D>;
}

// The blocks' sums of one head, in order. Every lane below kRanks finds what one of them counts for.
template <typename S>
__device__ __forceinline__ void merge(const NearArgs& a, S& shared, int head, int64_t row) {
  using Forms = typename S::Forms;
  constexpr int D = S::kDim, kEach = Spread<D>::kEach;
  const int t = int(threadIdx.x), lane = t % 32;
  const bool counts = lane < kRanks, holds = t < Spread<D>::kThreads;
  const float largest = counts ? load_remote(&shared.largest[head], lane) : -INFINITY,
              part = counts ? load_remote(&shared.total[head], lane) : 0.0f;
  float v[kRanks][kEach];
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) v[i][e] = 0;
    if (holds) load_remote(shared.mixed().sums[head] + t * kEach, i, v[i]);
  }
  const float most = warp_greatest(largest);
  float factor = largest == -INFINITY ? 0.0f : __expf(largest - most), total = factor * part;
#pragma unroll
  for (int o = 1; o < kRanks; o *= 2) total += __shfl_xor_sync(~0u, total, o);
  factor = total > 0 ? __fdividef(factor, total) : 0.0f;
  float x[kEach] = {};
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    const float of = __shfl_sync(~0u, factor, i);
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] += of == 0 ? 0.0f : of * v[i][e];
  }
  float* out = a.out + row * D;
  const KvBasis basis = basis_of(Forms::of(a, 1));
  if (basis == KvBasis::kHeadWide) return unrotate<D>(x, shared, out);
  if (holds)
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      (basis == KvBasis::kModel ? out : shared.mixed().merged)[t * kEach + e] = x[e];
  if (basis == KvBasis::kModel || !Forms::kKnown) return;
  __syncthreads();
  if (t >= 32) return;
  constexpr int E = D / 32;
  float y[E];
#pragma unroll
  for (int e = 0; e < E; ++e) y[e] = shared.mixed().merged[lane * E + e];
  warp_from_basis(basis, 1, y, lane);
#pragma unroll
  for (int e = 0; e < E; ++e) out[lane * E + e] = y[e];
}

// At most 72 registers, so that a block fits beside one of the products before or after it: a quarter of a
// multiprocessor has 512 for each lane, and five warps of a product take 56 each. Codes of 128 keys
// need more.
template <int D, typename Forms, int kN>
constexpr int kBoundThreads = D <= 256 && Forms::kKnown && (kN <= 64 || Forms::kPlain) ? 448 : kThreads;

template <int D, typename Forms, int kN>
__global__ void KVASIR_CLUSTER(kRanks) __launch_bounds__((kBoundThreads<D, Forms, kN>), D <= 256 ? 2 : 1)
    near_kernel(const __grid_constant__ NearArgs a, const __grid_constant__ StepView step) {
  extern __shared__ __align__(16) uint8_t memory[];
  using S = Shared<D, Forms, kN>;
  S& shared = *reinterpret_cast<S*>(memory);
  let_next_start();
  const int rank = int(blockIdx.x) % kRanks, kv_head = int(blockIdx.x) / kRanks, r = int(blockIdx.y);
  // The step and what earlier ones stored were there before the first launch of this step began. Loads that
  // wait for each other are few: what is known without one is not looked up.
  const int step_row = a.output_rows && !a.one_row ? step.out_rows[r] : r;
  const graph::Row row = step.rows[step_row];
  const int seq = a.one_sequence ? 0 : row.seq;
  const int first = first_visible(a.kv, step.sequences[seq], row.pos);
  const int each = (row.pos - first + kRanks) / kRanks;
  Keys keys;
  keys.pos = row.pos;
  keys.begin = min(first + rank * each, row.pos + 1);
  keys.end = min(keys.begin + each, row.pos + 1);
  const int n = keys.end - keys.begin;
  load_levels(a, shared);
  if (const int i = int(threadIdx.x) - 96;
      n > 0 && i >= 0 && i / 2 <= (keys.end - 1) / kPage - keys.begin / kPage)
    shared.region[i / 2][i % 2] =
        find_rows<Forms>(a, step.tables + (int64_t(seq) * 4 + (a.kv.window > 0 ? 2 : 0)) * step.table_stride,
                         step.table_stride, row.pos / kPage, keys.begin / kPage + i / 2, kv_head, i % 2);
  __syncthreads();
  bool in_units = false;
  float total = 0;
#pragma unroll 1
  for (int phase = 0;; ++phase) {
    const bool infinite = load_phase(a, keys, phase, in_units ? kUnit : 1.0f, shared);
    if (phase == 0) make_heads(a, keys, shared, kv_head, r, step_row);
    commit_copies();
    if (phase == S::kPhases - 1 && S::kPhases > 1) total = softmax(a, shared, n);
    wait_copies<0>();
    if constexpr (Forms::kPlain) {
      __syncthreads();
    } else if (__syncthreads_or(infinite && !in_units)) {
      in_units = true;
      load_in_units(a, keys, phase, shared);
    }
    if (phase == 0) {
      multiply_keys(shared, n);
      if (!Forms::kPlain && in_units) apply_units(keys, 0, shared);
      __syncthreads();
    }
    if (phase == S::kPhases - 1) break;
  }
  if (S::kPhases == 1) total = softmax(a, shared, n);
  if (!Forms::kPlain && in_units) apply_units(keys, 1, shared);
  __syncthreads();
  total = warp_sum(total);
  if (threadIdx.x % 32 == 0 && threadIdx.x < 32 * kHeads) shared.total[threadIdx.x / 32] = total;
  multiply_values(shared, n);
  __syncthreads();
  cluster_sync();
  const int group = a.n_head / a.kv.n_kv;
  if (rank < group) merge(a, shared, rank, int64_t(r) * a.n_head + kv_head * group + rank);
  cluster_sync();  // no block leaves while its sums are read
}

template <int D, typename Forms, int kN>
void run_keys(const Launch& how, const NearArgs& args, const StepView& step) {
  using S = Shared<D, Forms, kN>;
  constexpr int kEach = 233472 / 2 - 1024;  // of a multiprocessor of sm_90, for each of two blocks
  static_assert(D > 256 || sizeof(S) <= kEach);
  launch(how, dim3(unsigned(kRanks * args.kv.n_kv), unsigned(args.n_rows)), dim3(kThreads), sizeof(S),
         near_kernel<D, Forms, kN>, args, step);
}
template <int D, typename Forms>
void run(const Launch& how, const NearArgs& args, const StepView& step) {
  constexpr int kFew = kNearKeys / kRanks;
  if constexpr (D == 256)
    if (args.kv.window > kNearKeys) return run_keys<D, Forms, 2 * kFew>(how, args, step);
  run_keys<D, Forms, kFew>(how, args, step);
}

// The kernel of its types: of head sizes 256 and 512 any type for both sides.
template <int D>
void run(const Launch& how, const NearArgs& args, const StepView& step) {
  if constexpr (D >= 256) {
    if (args.kv.k_form == args.kv.v_form) switch (args.kv.k_form) {
#define KVASIR_RUN(name) \
  case KvForm::name:     \
    return run<D, Same<KvForm::name>>(how, args, step)
        KVASIR_RUN(kF16);
        KVASIR_RUN(kBf16);
        KVASIR_RUN(kQ8_0);
        KVASIR_RUN(kQ5_0);
        KVASIR_RUN(kQ4_0);
        KVASIR_RUN(kTbq3_0);
        KVASIR_RUN(kTbq4_0);
        KVASIR_RUN(kQ4Polar);
        KVASIR_RUN(kTbq3Tcq);
        KVASIR_RUN(kTbq2H);
        KVASIR_RUN(kTbq3H);
        KVASIR_RUN(kTbq4H);
        KVASIR_RUN(kTbq2Ht);
        KVASIR_RUN(kTbq3Ht);
        KVASIR_RUN(kTbq4Ht);
#undef KVASIR_RUN
        default:
          break;
      }
  }
  run<D, Mixed>(how, args, step);
}

}  // namespace

int near_keys(const KvView& kv) {
  const bool fits = kv.head_dim == 256 && kv.window > kNearKeys && kv.window <= 2 * kNearKeys;
  // Rows of these take longer to expand here than as codes in the decode kernel, which needs no expanded row.
  const auto slow = [](KvForm form) { return head_wide(form) && form != KvForm::kTbq4H; };
  return fits && !slow(kv.k_form) && !slow(kv.v_form) ? 2 * kNearKeys : kNearKeys;
}

bool has_near(const NearArgs& args) {
  const auto mixes = [](KvForm form) {
    return form == KvForm::kF16 || form == KvForm::kQ8_0 || (head_wide(form) && !trellis(form));
  };
  const KvView& kv = args.kv;
  const int d = kv.head_dim;
  const bool known = (open_page(kv.k_form) && kv.k_form != KvForm::kQjl1_256) || kv.k_form == KvForm::kBf16;
  const bool same = kv.k_form == kv.v_form && d >= 256 && known;
  if (!(same || (mixes(kv.k_form) && mixes(kv.v_form))) || args.n_head > kHeads * kv.n_kv) return false;
  for (int j = 0; j < args.heads.n_jobs; ++j) {
    const HeadJob& job = args.heads.jobs[j];
    // Halves that turn are together the whole head; cosines are loaded four at a time.
    if (job.turns && (job.half * 2 != d || job.n_pairs % 4 != 0)) return false;
  }
  return d == 64 || d == 128 || d == 256 || d == 512;
}

void attend_near(const Launch& how, const NearArgs& args, const StepView& step) {
  NearArgs a = args;
  const auto bytes = [&](bool is, KvForm form) { return is ? int(region_bytes(form, a.kv.head_dim)) : 0; };
  a.region_keys = bytes(true, a.kv.k_form), a.region_each = a.region_keys + bytes(true, a.kv.v_form);
  a.exact_before_values = bytes(open_page(a.kv.k_form), KvForm::kF16);
  a.exact_each = a.exact_before_values + bytes(open_page(a.kv.v_form), KvForm::kF16);
  for (int j = 0; j < a.heads.n_jobs; ++j) {
    const HeadJob& job = a.heads.jobs[j];
    a.jobs[job.side + 1] = {job.in, job.w, job.turns, job.n_head, job.n_pairs, job.eps, job.scale, job.norm};
  }
  with_head_size<64, 128, 256, 512>("near", a.kv.head_dim, [&](auto size) { run<size.value>(how, a, step); });
}

}  // namespace kvasir::cuda
