#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/cluster.cuh"
#include "backends/cuda/kernels/kv_append/fits.cuh"
#include "backends/cuda/kernels/kv_forms/load.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/near/near.h"

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
        raw[i] = load_raw<D, F>(data, first + unit / kUnits, unit % kUnits);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int unit = begin + i * kSideThreads;
      if (unit >= n * kUnits) break;
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

// What a warp makes: a query head of this KV head, or the new key or value.
struct Made {
  const HeadJob* job;  // null: ready already
  int side;            // below 0: a query
  int head;            // of its kind
};
__device__ __forceinline__ Made find_made(const NearArgs& a, int kv_head, int warp) {
  const int side = max(warp - kHeads, -1);
  Made made{nullptr, side, side < 0 ? kv_head * (a.n_head / a.kv.n_kv) + warp : kv_head};
  for (int j = 0; j < a.heads.n_jobs; ++j)
    if (a.heads.jobs[j].side == side) made.job = &a.heads.jobs[j];
  return made;
}

template <int E>
__device__ __forceinline__ void load_floats(const float* from, float (&v)[E]) {
  if constexpr (E == 2) {
    const float2 x = *reinterpret_cast<const float2*>(from);
    v[0] = x.x, v[1] = x.y;
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(from + i);
      v[i] = x.x, v[i + 1] = x.y, v[i + 2] = x.z, v[i + 3] = x.w;
    }
  }
}

// A head by a warp: RMS norm, turn, rotation. Lane l holds values l * E .. l * E + E - 1; `x`: weights of the
// norm when it begins.
template <typename Forms, int E>
__device__ __forceinline__ void make_head(const HeadJob& job, int side, KvBasis basis, const float* in,
                                          int step_row, int lane, float (&x)[E]) {
  float v[E], c[E], s[E], sum = 0;
  const int away = job.turns ? job.half / E : 16;  // lanes
  const bool upper = lane >= away;
  const int partner = upper ? lane - away : lane + away, pair0 = (upper ? partner : lane) * E;
  const float* turns = job.turns + int64_t(step_row) * 2 * job.n_pairs;
  load_floats(in, v);
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const bool turned = job.turns && pair0 + i < job.n_pairs;
    c[i] = turned ? turns[pair0 + i] : 1.0f;
    s[i] = turned ? turns[job.n_pairs + pair0 + i] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < E; ++i) sum += v[i] * v[i];
  const float inverse = job.norm ? rsqrtf(warp_sum(sum) * (1.0f / (32 * E)) + job.eps) * job.scale : 1.0f;
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] *= v[i] * inverse;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const float other = __shfl_sync(~0u, x[i], partner);
    x[i] = x[i] * c[i] + (upper ? other * s[i] : -other * s[i]);
  }
  if (basis == KvBasis::kHeadWide)
    warp_rotate(side, x, lane);
  else if constexpr (Forms::kKnown)
    warp_to_basis(basis, 0, x, lane);
}

// The heads of this step: queries for every block; the new key and value where its place is, and into the
// cache.
template <typename S>
__device__ __forceinline__ void make_heads(const NearArgs& a, const Keys& keys, S& shared, int kv_head, int r,
                                           int step_row) {
  using Forms = typename S::Forms;
  constexpr int D = S::kDim, E = D / 32;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, group = a.n_head / a.kv.n_kv;
  const bool owns = keys.begin <= keys.pos && keys.pos < keys.end;
  const Made made = find_made(a, kv_head, warp);
  const bool query = made.side < 0, works = query ? warp < group : owns;
  float x[E];
#pragma unroll
  for (int e = 0; e < E; ++e) x[e] = works ? 1.0f : 0.0f;
  if (works && made.job && made.job->w)
#pragma unroll
    for (int e = 0; e < E; ++e) x[e] = made.job->w[lane * E + e];
  wait_for_inputs();
  if (!query && !owns) return;
  const int place = keys.pos - keys.begin, token = keys.pos % kPage;
  const Region& region = shared.region[keys.page_of(keys.pos)][max(made.side, 0)];
  __half* to = query                                        ? shared.q[0][warp]
               : !made.side                                 ? shared.key(place)
               : S::kFirst < S::kKeys && place >= S::kFirst ? shared.fresh
                                                            : shared.value(place);
  if (!query && !made.job) {  // another layer stored it, as f16: its page is not full
#pragma unroll 1
    for (int i = lane; i < D / 8; i += 32) copy_async(to + 8 * i, region.data + (token * D + 8 * i) * 2);
    return;
  }
  if (works && made.job) {
    const float* in = made.job->in + (int64_t(r) * made.job->n_head + made.head) * D + lane * E;
    const KvForm form = Forms::of(a, made.side > 0);
    make_head<Forms>(*made.job, max(made.side, 0), basis_of(form), in, step_row, lane, x);
  } else if (works) {
    const float* in = a.q + (int64_t(r) * a.n_head + made.head) * D + lane * E;
    load_floats(in, x);
  }
  __half* cache = query ? nullptr : reinterpret_cast<__half*>(const_cast<uint8_t*>(region.data)) + token * D;
  bool finite = true, doubtful = false;
#pragma unroll
  for (int e = 0; e < E; e += 2) {
    const uint32_t h = stored_pair<Forms::kForm == KvForm::kBf16>(x[e], x[e + 1]);
    *reinterpret_cast<uint32_t*>(to + lane * E + e) = h;
    if constexpr (S::kTerms == 2)
      if (query)
        *reinterpret_cast<uint32_t*>(shared.q[1][warp] + lane * E + e) = bf16_rest(h, x[e], x[e + 1]);
    if (!cache) continue;
    *reinterpret_cast<uint32_t*>(cache + lane * E + e) = h;
    constexpr uint32_t kExponent = Forms::kForm == KvForm::kBf16 ? 0x7f80u : 0x7c00u;
    finite &= (h & kExponent) != kExponent && (h >> 16 & kExponent) != kExponent;
    doubtful |= fabsf(x[e]) > kAlwaysFits || fabsf(x[e + 1]) > kAlwaysFits;
  }
  if (const KvForm form = Forms::of(a, made.side > 0);
      cache && open_page(form) && __any_sync(~0u, doubtful) && __all_sync(~0u, finite)) {
    __syncwarp();
    finite = stored_row_fits(form, cache, D, lane, shared.codes[made.side]);
  }
  if (!finite && atomicCAS(a.heads.fault, -1, a.heads.layer) == -1) a.heads.fault[1] = step_row;
}

// score[part][key][head]: a warp takes 16 keys over a part of the head.
template <typename S>
__device__ __forceinline__ void multiply_keys(S& shared, int n) {
  constexpr int kChunks = S::kKeys / 16, kEach = S::kDim / S::kParts;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, key0 = warp % kChunks * 16,
            part = warp / kChunks;
  if (warp >= kMathWarps || key0 >= n) return;
  float s[4] = {};
#pragma unroll 4
  for (int k = part * kEach; k < (part + 1) * kEach; k += 16) {
    uint32_t a[4];
    load_tiles(a, shared.key(key0 + lane % 16) + k + lane / 16 * 8);
#pragma unroll
    for (int term = 0; term < S::kTerms; ++term) {
      const uint32_t* q = reinterpret_cast<const uint32_t*>(&shared.q[term][lane / 4][k + lane % 4 * 2]);
      multiply_as<S::Forms::kForm == KvForm::kBf16>(s, a, q[0], q[4]);
    }
  }
  *reinterpret_cast<float2*>(&shared.score[part][key0 + lane / 4][lane % 4 * 2]) = {s[0], s[1]};
  *reinterpret_cast<float2*>(&shared.score[part][key0 + lane / 4 + 8][lane % 4 * 2]) = {s[2], s[3]};
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

// A warp a head.
template <typename S>
__device__ __forceinline__ void softmax(const NearArgs& a, S& shared, int n) {
  constexpr int kKeys = S::kKeys;
  const int head = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (head >= kHeads) return;
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
  most = warp_max(most);
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
  total = warp_sum(total);
  if (lane == 0) shared.largest[head] = most, shared.total[head] = total;
}

// Sums of values: a warp takes 16 values at a time.
template <typename S>
__device__ __forceinline__ void multiply_values(S& shared, int n) {
  constexpr int D = S::kDim;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp >= kMathWarps) return;
#pragma unroll 1
  for (int d = warp * 16; d < D; d += 16 * kMathWarps) {
    float s[4] = {};
#pragma unroll 1
    for (int k = 0; k < n; k += 16) {
      uint32_t a[4];
      load_tiles_transposed(a, shared.value(k) + (lane / 16 * 8 + lane % 8) * (D + 8) + d + lane / 8 % 2 * 8);
#pragma unroll
      for (int term = 0; term < S::kTerms; ++term) {
        const uint32_t* w =
            reinterpret_cast<const uint32_t*>(&shared.mixed().weight[term][lane / 4][k + lane % 4 * 2]);
        multiply_as<S::Forms::kForm == KvForm::kBf16>(s, a, w[0], w[4]);
      }
    }
    float* to = shared.mixed().sums[lane % 4 * 2] + d + lane / 4;
    to[0] = s[0], to[D] = s[1], to[8] = s[2], to[D + 8] = s[3];
  }
}

// Out of the head-wide basis: value d of the head in thread d % 256, in `x[d / 256]`.
template <int D, typename S>
__device__ __forceinline__ void unrotate(float (&x)[(D + 255) / 256], S& shared, float* out) {
  constexpr int kEach = (D + 255) / 256, kBlocks = D / 32;
  const int t = int(threadIdx.x);
#pragma unroll
  for (int o = 1; o < 32; o *= 2)
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float other = __shfl_xor_sync(~0u, x[e], o);
      x[e] = (t & o) ? other - x[e] : x[e] + other;
    }
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (const int d = t + 256 * e; d < min(D, 256 * (e + 1))) shared.mixed().merged[d] = x[e];
  __syncthreads();
  if (t >= min(D, 256)) return;
  float v[kBlocks];
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) v[j] = shared.mixed().merged[32 * j + t % 32];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int d = t + 256 * e;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) sum += __popc(j & (d / 32)) & 1 ? -v[j] : v[j];
    constexpr float kNorm = D == 64    ? 0.125f
                            : D == 128 ? 0.08838834764831845f
                            : D == 256 ? 0.0625f
                                       : 0.04419417382415922f;
    out[d] = flip_sign(1, d, sum * kNorm);
  }
}

// The blocks' sums of one head, in order. Every lane below kRanks finds what one of them counts for.
template <typename S>
__device__ __forceinline__ void merge(const NearArgs& a, S& shared, int head, int64_t row) {
  using Forms = typename S::Forms;
  constexpr int D = S::kDim, kEach = (D + 255) / 256;
  const int t = int(threadIdx.x), lane = t % 32;
  const bool counts = lane < kRanks;
  const float largest = counts ? load_remote(&shared.largest[head], lane) : -INFINITY,
              part = counts ? load_remote(&shared.total[head], lane) : 0.0f;
  float v[kEach][kRanks];
#pragma unroll
  for (int e = 0; e < kEach; ++e)
#pragma unroll
    for (int i = 0; i < kRanks; ++i)
      v[e][i] = t < min(D, 256) ? load_remote(shared.mixed().sums[head] + t + 256 * e, i) : 0.0f;
  const float most = warp_max(largest);
  float factor = largest == -INFINITY ? 0.0f : __expf(largest - most);
  const float total = warp_sum(factor * part);
  factor = total > 0 ? __fdividef(factor, total) : 0.0f;
  float x[kEach] = {};
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    const float of = __shfl_sync(~0u, factor, i);
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[e] += of == 0 ? 0.0f : of * v[e][i];
  }
  float* out = a.out + row * D;
  const KvBasis basis = basis_of(Forms::of(a, 1));
  if (basis == KvBasis::kHeadWide) return unrotate<D>(x, shared, out);
  if (t < min(D, 256))
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      (basis == KvBasis::kModel ? out : shared.mixed().merged)[t + 256 * e] = x[e];
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
// multiprocessor has 512 for each lane, and five warps of a product take 56 each. Codes of 128 keys need more.
template <int D, typename Forms, int kN>
constexpr int kBoundThreads = D <= 256 && Forms::kKnown && (kN <= 64 || Forms::kPlain) ? 448 : kThreads;

template <int D, typename Forms, int kN>
__global__ void KVASIR_CLUSTER(kRanks)
    __launch_bounds__((kBoundThreads<D, Forms, kN>), D <= 256 ? 2 : 1)
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
#pragma unroll 1
  for (int phase = 0;; ++phase) {
    const bool infinite = load_phase(a, keys, phase, in_units ? kUnit : 1.0f, shared);
    if (phase == 0) make_heads(a, keys, shared, kv_head, r, step_row);
    commit_copies();
    if (phase == S::kPhases - 1 && S::kPhases > 1) softmax(a, shared, n);
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
  if (S::kPhases == 1) softmax(a, shared, n);
  if (!Forms::kPlain && in_units) apply_units(keys, 1, shared);
  __syncthreads();
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
    // Halves that turn are whole lanes, and together the whole head.
    if (job.turns && job.half * 2 != d) return false;
  }
  return d == 64 || d == 128 || d == 256 || d == 512;
}

void attend_near(const Launch& how, const NearArgs& args, const StepView& step) {
  NearArgs a = args;
  const auto bytes = [&](bool is, KvForm form) { return is ? int(region_bytes(form, a.kv.head_dim)) : 0; };
  a.region_keys = bytes(true, a.kv.k_form), a.region_each = a.region_keys + bytes(true, a.kv.v_form);
  a.exact_before_values = bytes(open_page(a.kv.k_form), KvForm::kF16);
  a.exact_each = a.exact_before_values + bytes(open_page(a.kv.v_form), KvForm::kF16);
  with_head_size<64, 128, 256, 512>("near", a.kv.head_dim, [&](auto size) { run<size.value>(how, a, step); });
}

}  // namespace kvasir::cuda
