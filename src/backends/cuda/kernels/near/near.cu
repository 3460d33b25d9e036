#include "backends/cuda/kernels/attention/head_sizes.h"
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/cluster.cuh"
#include "backends/cuda/kernels/kv_append/fits.cuh"
#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/near/near.h"

namespace kvasir::cuda {
namespace {

constexpr int kRanks = 8;  // blocks of a cluster
constexpr int kWarps = 10, kThreads = 32 * kWarps, kMathWarps = 8;
constexpr int kKeys = kNearKeys / kRanks, kHeads = 8;  // of a block

template <int D>
struct Shared {
  __half k[kKeys][D + 8];  // then the sums of values: float [kHeads][D]
  __half v[kKeys][D + 8];
  __half q[kHeads][D + 8];
  float score[2][kKeys][kHeads + 2];  // of both halves of the head
  __half weight[kHeads][kKeys + 8];
  float largest[kHeads], total[kHeads];
  float merged[D];
  float level[2][16];   // keys, values
  uint8_t codes[2][D];  // of a new row, where its fit is in doubt
  Region region[2][2];  // of the block's first and last page; keys, values
  __device__ float* mixed(int head) { return reinterpret_cast<float*>(&k[0][0]) + head * D; }
};

// The keys of one block: [begin, end), which lie in at most two pages.
struct Keys {
  int begin, end, pos;
  __device__ __forceinline__ int page_of(int key_pos) const { return key_pos / kPage != begin / kPage; }
};

template <int bits>
__device__ __forceinline__ uint32_t load_codes(const uint8_t* p) {
  if constexpr (bits == 2) return __ldg(reinterpret_cast<const uint16_t*>(p));
  if constexpr (bits == 4) return __ldg(reinterpret_cast<const uint32_t*>(p));
  return uint32_t(__ldg(p)) | uint32_t(__ldg(p + 1)) << 8 | uint32_t(__ldg(p + 2)) << 16;
}

// Values 8 i .. 8 i + 7 of an encoded row, as four pairs.
template <int bits>
__device__ __forceinline__ uint4 expand_head_wide(const uint8_t* region, int d, int token, int i,
                                                  const float* level) {
  const int row = d / 8 * bits;
  const uint32_t codes = load_codes<bits>(region + token * row + i * bits);
  const float scale = __half2float(reinterpret_cast<const __half*>(region + kPage * row)[token]);
  uint32_t pair[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const __half2 h = __floats2half2_rn(scale * level[codes >> (2 * j * bits) & ((1 << bits) - 1)],
                                        scale * level[codes >> ((2 * j + 1) * bits) & ((1 << bits) - 1)]);
    pair[j] = *reinterpret_cast<const uint32_t*>(&h);
  }
  return {pair[0], pair[1], pair[2], pair[3]};
}

__device__ __forceinline__ uint4 expand_q8_0(const uint8_t* region, int d, int token, int i) {
  const uint2 codes = __ldg(reinterpret_cast<const uint2*>(region + token * d + 8 * i));
  const float scale =
      __half2float(reinterpret_cast<const __half*>(region + kPage * d)[token * (d / 32) + i / 4]);
  uint32_t pair[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t word = (j < 2 ? codes.x : codes.y) >> (16 * (j % 2));
    const __half2 h = __floats2half2_rn(scale * float(int8_t(word)), scale * float(int8_t(word >> 8)));
    pair[j] = *reinterpret_cast<const uint32_t*>(&h);
  }
  return {pair[0], pair[1], pair[2], pair[3]};
}

// One row of keys or values into its tile by a warp.
template <int D>
__device__ __forceinline__ void load_row(const Region& from, int token, const float* level, __half* to,
                                         int lane) {
#pragma unroll 1
  for (int i = lane; i < D / 8; i += 32) {
    uint4 x;
    switch (from.form) {
      case KvForm::kF16:
        copy_async(to + 8 * i, from.data + (token * D + 8 * i) * 2);
        continue;
      case KvForm::kQ8_0:
        x = expand_q8_0(from.data, D, token, i);
        break;
      case KvForm::kTbq2H:
        x = expand_head_wide<2>(from.data, D, token, i, level);
        break;
      case KvForm::kTbq3H:
        x = expand_head_wide<3>(from.data, D, token, i, level);
        break;
      default:
        x = expand_head_wide<4>(from.data, D, token, i, level);
    }
    *reinterpret_cast<uint4*>(to + 8 * i) = x;
  }
}

// What earlier steps stored. Values past the end, up to a whole product, are zero: their weights are, too.
template <int D>
__device__ __forceinline__ void load_keys(const Keys& keys, Shared<D>& shared) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, n = keys.end - keys.begin;
#pragma unroll 1
  for (int i = warp; i < 2 * n; i += kWarps) {
    const int side = i & 1, key = i / 2, pos = keys.begin + key;
    if (pos != keys.pos)
      load_row<D>(shared.region[keys.page_of(pos)][side], pos % kPage, shared.level[side],
                  side ? shared.v[key] : shared.k[key], lane);
  }
#pragma unroll 1
  for (int key = n + warp; key < (n + 15) / 16 * 16; key += kWarps)
    for (int i = lane; i < D / 8; i += 32) *reinterpret_cast<uint4*>(&shared.v[key][8 * i]) = {0, 0, 0, 0};
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

// A head by a warp: RMS norm, turn, rotation. Lane l holds values l * E .. l * E + E - 1; `x`: weights of the
// norm when it begins.
template <int E>
__device__ __forceinline__ void make_head(const HeadJob& job, int side, bool rotate, const float* in,
                                          int step_row, int lane, float (&x)[E]) {
  float v[E], c[E], s[E], sum = 0;
  const int away = job.turns ? job.half / E : 16;  // lanes
  const bool upper = lane >= away;
  const int partner = upper ? lane - away : lane + away, pair0 = (upper ? partner : lane) * E;
  const float* turns = job.turns + int64_t(step_row) * 2 * job.n_pairs;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const bool turned = job.turns && pair0 + i < job.n_pairs;
    v[i] = in[i];
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
  if (rotate) warp_rotate(side, x, lane);
}

// The heads of this step: queries for every block; the new key and value where its place is, and into the
// cache.
template <int D>
__device__ __forceinline__ void make_heads(const NearArgs& a, const Keys& keys, Shared<D>& shared,
                                           int kv_head, int r, int step_row) {
  constexpr int E = D / 32;
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
  __half* to = query ? shared.q[warp] : made.side ? shared.v[place] : shared.k[place];
  if (!query && !made.job) return load_row<D>(region, token, nullptr, to, lane);  // another layer stored it
  if (works && made.job) {
    const float* in = made.job->in + (int64_t(r) * made.job->n_head + made.head) * D + lane * E;
    const KvForm form = made.side > 0 ? a.kv.v_form : a.kv.k_form;
    make_head(*made.job, max(made.side, 0), head_wide(form), in, step_row, lane, x);
  } else if (works) {
    const float* in = a.q + (int64_t(r) * a.n_head + made.head) * D + lane * E;
#pragma unroll
    for (int e = 0; e < E; ++e) x[e] = in[e];
  }
  __half* cache = query ? nullptr : reinterpret_cast<__half*>(const_cast<uint8_t*>(region.data)) + token * D;
  bool finite = true, doubtful = false;
#pragma unroll
  for (int e = 0; e < E; e += 2) {
    const __half2 h = __floats2half2_rn(x[e], x[e + 1]);
    *reinterpret_cast<__half2*>(to + lane * E + e) = h;
    if (!cache) continue;
    *reinterpret_cast<__half2*>(cache + lane * E + e) = h;
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(&h);
    finite &= (bits & 0x7c00u) != 0x7c00u && (bits & 0x7c000000u) != 0x7c000000u;
    doubtful |= fabsf(x[e]) > kAlwaysFits || fabsf(x[e + 1]) > kAlwaysFits;
  }
  const KvForm form = made.side > 0 ? a.kv.v_form : a.kv.k_form;
  if (cache && open_page(form) && __any_sync(~0u, doubtful) && __all_sync(~0u, finite)) {
    __syncwarp();
    finite = stored_row_fits(form, cache, D, lane, shared.codes[made.side]);
  }
  if (!finite && atomicCAS(a.heads.fault, -1, a.heads.layer) == -1) a.heads.fault[1] = step_row;
}

// score[half][key][head]: a warp takes 16 keys over half of the head.
template <int D>
__device__ __forceinline__ void multiply_keys(Shared<D>& shared, int n) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, key0 = warp % 4 * 16, half = warp / 4;
  if (warp >= kMathWarps || key0 >= n) return;
  float s[4] = {};
#pragma unroll 4
  for (int k = half * (D / 2); k < (half + 1) * (D / 2); k += 16) {
    uint32_t a[4];
    load_tiles(a, &shared.k[key0 + lane % 16][k + lane / 16 * 8]);
    const uint32_t* q = reinterpret_cast<const uint32_t*>(&shared.q[lane / 4][k + lane % 4 * 2]);
    multiply(s, a, q[0], q[4]);
  }
  *reinterpret_cast<float2*>(&shared.score[half][key0 + lane / 4][lane % 4 * 2]) = {s[0], s[1]};
  *reinterpret_cast<float2*>(&shared.score[half][key0 + lane / 4 + 8][lane % 4 * 2]) = {s[2], s[3]};
}

// A warp a head.
template <int D>
__device__ __forceinline__ void softmax(const NearArgs& a, Shared<D>& shared, int n) {
  const int head = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (head >= kHeads) return;
  float s[2], most = -INFINITY, total = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int key = lane + 32 * i;
    s[i] = -INFINITY;
    if (key < n) {
      s[i] = (shared.score[0][key][head] + shared.score[1][key][head]) * a.scale;
      if (a.softcap > 0) s[i] = a.softcap * (1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * s[i] / a.softcap)));
    }
    most = fmaxf(most, s[i]);
  }
  most = warp_max(most);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float p = s[i] == -INFINITY ? 0.0f : __expf(s[i] - most);
    total += p;
    shared.weight[head][lane + 32 * i] = __float2half_rn(p);
  }
  total = warp_sum(total);
  if (lane == 0) shared.largest[head] = most, shared.total[head] = total;
}

// mixed[head][value]: a warp takes 16 values at a time.
template <int D>
__device__ __forceinline__ void multiply_values(Shared<D>& shared, int n) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp >= kMathWarps) return;
#pragma unroll 1
  for (int d = warp * 16; d < D; d += 16 * kMathWarps) {
    float s[4] = {};
#pragma unroll 1
    for (int k = 0; k < n; k += 16) {
      uint32_t a[4];
      load_tiles_transposed(a, &shared.v[k + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]);
      const uint32_t* w = reinterpret_cast<const uint32_t*>(&shared.weight[lane / 4][k + lane % 4 * 2]);
      multiply(s, a, w[0], w[4]);
    }
    float* to = shared.mixed(lane % 4 * 2) + d + lane / 4;
    to[0] = s[0], to[D] = s[1], to[8] = s[2], to[D + 8] = s[3];
  }
}

// The blocks' sums of one head, in order.
template <int D>
__device__ __forceinline__ void merge(const NearArgs& a, Shared<D>& shared, int head, int64_t row) {
  float most = -INFINITY, total = 0, factor[kRanks];
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    factor[i] = load_remote(&shared.largest[head], i);
    most = fmaxf(most, factor[i]);
  }
#pragma unroll
  for (int i = 0; i < kRanks; ++i) {
    factor[i] = factor[i] == -INFINITY ? 0.0f : __expf(factor[i] - most);
    total += factor[i] * load_remote(&shared.total[head], i);
  }
  const float inverse = total > 0 ? 1.0f / total : 0.0f;
  const bool rotated = head_wide(a.kv.v_form);
  float* out = a.out + row * D;
#pragma unroll 1
  for (int d = int(threadIdx.x); d < D; d += kThreads) {
    float v[kRanks], sum = 0;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) v[i] = load_remote(shared.mixed(head) + d, i);
#pragma unroll
    for (int i = 0; i < kRanks; ++i) sum += factor[i] == 0 ? 0.0f : factor[i] * v[i];
    (rotated ? shared.merged : out)[d] = sum * inverse;
  }
  if (!rotated) return;
  __syncthreads();
  const int lane = int(threadIdx.x);
  if (lane >= 32) return;
  constexpr int E = D / 32;
  float x[E];
#pragma unroll
  for (int e = 0; e < E; ++e) x[e] = shared.merged[lane * E + e];
  warp_unrotate(1, x, lane);
#pragma unroll
  for (int e = 0; e < E; ++e) out[lane * E + e] = x[e];
}

template <int D>
__global__ void KVASIR_CLUSTER(kRanks) __launch_bounds__(kThreads, 1)
    near_kernel(const __grid_constant__ NearArgs a, const __grid_constant__ StepView step) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared<D>& shared = *reinterpret_cast<Shared<D>*>(memory);
  let_next_start();
  const int rank = int(blockIdx.x) % kRanks, kv_head = int(blockIdx.x) / kRanks, r = int(blockIdx.y);
  // The step and what earlier ones stored were there before the first launch of this step began.
  const int step_row = a.output_rows ? step.out_rows[r] : r;
  const graph::Row row = step.rows[step_row];
  const int first = first_visible(a.kv, step.sequences[row.seq], row.pos);
  const int each = (row.pos - first + kRanks) / kRanks;
  Keys keys;
  keys.pos = row.pos;
  keys.begin = min(first + rank * each, row.pos + 1);
  keys.end = min(keys.begin + each, row.pos + 1);
  const int n = keys.end - keys.begin;
  if (threadIdx.x < 32) {
    const int side = int(threadIdx.x) / 16, i = int(threadIdx.x) % 16;
    const KvForm form = side ? a.kv.v_form : a.kv.k_form;
    shared.level[side][i] =
        head_wide(form) ? kHeadTables.level[int(form) - int(KvForm::kTbq2H)][size_index(D)][i] : 0.0f;
  }
  if (const int i = int(threadIdx.x) - 32; n > 0 && i >= 0 && i < 4)
    shared.region[i / 2][i % 2] = find_region(a.kv, step, row.seq, row.pos / kPage,
                                              (i / 2 ? keys.end - 1 : keys.begin) / kPage, kv_head, i % 2);
  __syncthreads();
  load_keys(keys, shared);
  make_heads(a, keys, shared, kv_head, r, step_row);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  multiply_keys(shared, n);
  __syncthreads();
  softmax(a, shared, n);
  __syncthreads();
  multiply_values(shared, n);
  __syncthreads();
  cluster_sync();
  const int group = a.n_head / a.kv.n_kv;
  if (rank < group) merge(a, shared, rank, int64_t(r) * a.n_head + kv_head * group + rank);
  cluster_sync();  // no block leaves while its sums are read
}

template <int D>
void run(const Launch& how, const NearArgs& args, const StepView& step) {
  launch(how, dim3(unsigned(kRanks * args.kv.n_kv), unsigned(args.n_rows)), dim3(kThreads), sizeof(Shared<D>),
         near_kernel<D>, args, step);
}

}  // namespace

bool has_near(const NearArgs& args) {
  const auto takes = [](KvForm form) {
    return form == KvForm::kF16 || form == KvForm::kQ8_0 || form == KvForm::kTbq2H ||
           form == KvForm::kTbq3H || form == KvForm::kTbq4H;
  };
  const int d = args.kv.head_dim;
  if (!takes(args.kv.k_form) || !takes(args.kv.v_form) || args.n_head > kHeads * args.kv.n_kv) return false;
  for (int j = 0; j < args.heads.n_jobs; ++j) {
    const HeadJob& job = args.heads.jobs[j];
    // Halves that turn are whole lanes, and together the whole head.
    if (job.turns && job.half * 2 != d) return false;
  }
  return d == 64 || d == 128 || d == 256 || d == 512;
}

void attend_near(const Launch& how, const NearArgs& args, const StepView& step) {
  with_head_size<64, 128, 256, 512>("near", args.kv.head_dim,
                                    [&](auto size) { run<size.value>(how, args, step); });
}

}  // namespace kvasir::cuda
