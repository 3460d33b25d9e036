// What the launches that stream matrices past one row share: the row as int8 groups, sums over the block, and
// what becomes of a product.
#pragma once
#include "backends/cuda/kernels/choose/key.cuh"
#include "backends/cuda/kernels/matvec/bulk.cuh"
#include "backends/cuda/kernels/matvec/small_units.cuh"

namespace kvasir::cuda {

inline constexpr int kStreamBlocks = 132;  // at most: one a multiprocessor of an H200
inline constexpr int kGroup = 32;          // values with one scale
inline constexpr int kStreamWarps = 16, kWorkers = 32 * kStreamWarps, kStreamThreads = kWorkers + 32;
inline constexpr size_t kMostStreamMemory = 200 * 1024;  // of a launch
inline constexpr int kMaxStages = 16;
inline constexpr int kPlanes = 4;  // codes, high, aux, aux2
inline constexpr int kStreamHeaderBytes = 2 * kMaxStages * 8 + 4 * kStreamWarps * 4 + kMaxStages * 2 * 4;
// Two launches share a multiprocessor, and of one launch each has one block: every second launch asks for
// more than half of the shared memory, so that two of its blocks do not fit, and the others fit once beside
// it. Without that half of the multiprocessors had two blocks of a launch and half had none. A launch with
// more blocks than there are multiprocessors would take two turns so: it asks for what it needs.
inline constexpr int kLargeMemory = 115968, kSmallMemory = 115456;

// What a launch reads of one part, and what becomes of its products.
struct StreamPart {
  const uint8_t* plane[2][kPlanes];  // of both matrices of a gated pair
  float* out;
  const float* mul;
  const float* residual;
  float softcap, inverse_softcap;
  int first;  // among what all parts make: a chunk or a row
  bool gelu;
};

struct StreamRow {
  NormArgs norm;   // x null: the row is `x`
  bool ready;      // nobody has to be waited for
  QuantRows made;  // as int8 groups already: the first n_made values, a multiple of 128
  int n_made;
  const float* x;
  float inverse_n;
  int n;
};

// Which matrix rows a block has, in units of one or a few: first such as fill groups of 32 outputs, block
// after block, then an even share of the rest.
struct Deal {
  int blocks;
  int whole;       // units that every block has first, in groups left whole
  int each, more;  // units of the rest that every block has, and how many blocks have one more
  __device__ __forceinline__ int count(int block) const { return whole + each + int(block < more); }
  __device__ __forceinline__ int at(int block, int i) const {
    return i < whole ? block * whole + i : (blocks - 1) * whole + block * each + min(block, more) + i;
  }
};

// One product, and its row.
struct StreamProduct {
  StreamPart parts[3];
  StreamRow row;
  uint64_t* best;          // greatest key of the outputs, or null
  QuantRows groups;        // of outputs, or null: of those that lie in a block whole
  int n_parts, sides;      // sides: matrices, 2 for a gated pair
  int row_bytes[kPlanes];  // of one matrix row
  int n_firsts;            // what the parts' `first` counts, of all of them
  Deal deal;               // of them
  bool leads;              // StreamArgs
};

struct StreamMemory {
  uint64_t full[kMaxStages], empty[kMaxStages];
  float scratch[4][kStreamWarps];
  int shift[kMaxStages][2];  // of the last plane of each side: where it begins among the bytes copied
};
static_assert(sizeof(StreamMemory) == kStreamHeaderBytes);

__device__ __forceinline__ void workers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// Sum over the workers; every one gets it.
__device__ __forceinline__ float workers_sum(float v, StreamMemory& memory) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) memory.scratch[0][threadIdx.x / 32] = v;
  workers_sync();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kStreamWarps; i += 4) {
    const float4 s = *reinterpret_cast<const float4*>(memory.scratch[0] + i);
    sum += (s.x + s.y) + (s.z + s.w);
  }
  return sum;
}

// Four of them at once: an eighth of a warp ends with one each.
__device__ __forceinline__ float4 workers_sums(float4 v, StreamMemory& memory) {
  static_assert(kStreamWarps == 16);
  const int lane = int(threadIdx.x) % 32;
  const bool upper = lane & 16, high = lane & 8;
  float a = upper ? v.z : v.x, b = upper ? v.w : v.y;
  a += __shfl_xor_sync(~0u, upper ? v.x : v.z, 16);
  b += __shfl_xor_sync(~0u, upper ? v.y : v.w, 16);
  float sum = high ? b : a;
  sum += __shfl_xor_sync(~0u, high ? a : b, 8);
#pragma unroll
  for (int o = 4; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane % 8 == 0) memory.scratch[lane / 8][threadIdx.x / 32] = sum;
  workers_sync();
  const float2 two = *reinterpret_cast<const float2*>(memory.scratch[lane / 8] + lane % 8 * 2);
  sum = two.x + two.y;
#pragma unroll
  for (int o = 4; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return {__shfl_sync(~0u, sum, 0), __shfl_sync(~0u, sum, 8), __shfl_sync(~0u, sum, 16),
          __shfl_sync(~0u, sum, 24)};
}

__device__ __forceinline__ float4 load_float4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ __forceinline__ float4 times(float4 a, float4 b, float s) {
  return {a.x * b.x * s, a.y * b.y * s, a.z * b.z * s, a.w * b.w * s};
}

// Of a row, four values a worker at a time.
inline constexpr int kRowBatch = 3, kRowStep = 4 * kWorkers;
static_assert(kMaxNormedRow <= kRowBatch * kRowStep);

// Past L1, whose lines may be older than a row that was not waited for.
__device__ __forceinline__ float4 load_row(const float* p) {
  return __ldcg(reinterpret_cast<const float4*>(p));
}

// The worker's values of the normed row but for a factor, which it gives; the first block stores the first
// norm's output where it is wanted. Weights are here before the row is. The sum of squares after the first
// norm, (i x w + r)^2 with i its factor, comes from three sums that need no i: the block meets once for both
// norms.
template <int kBatches>
__device__ __forceinline__ float make_norm(const StreamRow& row, StreamMemory& memory,
                                           float4 (&v)[kBatches]) {
  const NormArgs& a = row.norm;
  const int at = 4 * int(threadIdx.x);
  const bool writes = blockIdx.x == 0;
  float4 w[kBatches], w_second[kBatches], r[kBatches];
#pragma unroll
  for (int j = 0; j < kBatches; ++j) {
    const int i = at + j * kRowStep;
    w[j] = w_second[j] = {1, 1, 1, 1};
    if (a.w && i < a.n) w[j] = load_float4(a.w + i);
    if (a.w_second && i < a.n) w_second[j] = load_float4(a.w_second + i);
  }
  if (!row.ready) wait_for_inputs();
#pragma unroll
  for (int j = 0; j < kBatches; ++j) {
    const int i = at + j * kRowStep;
    v[j] = r[j] = {};
    if (i < a.n) v[j] = load_row(a.x + i);
    if (a.residual && i < a.n) r[j] = load_row(a.residual + i);
  }
  float4 sums{};
#pragma unroll
  for (int j = 0; j < kBatches; ++j) {
    sums.x += dot(v[j], v[j]);
    v[j] = times(v[j], w[j], 1.0f);
    sums.y += dot(v[j], v[j]);
    sums.z += dot(v[j], r[j]);
    sums.w += dot(r[j], r[j]);
  }
  if (a.w_second)
    sums = workers_sums(sums, memory);
  else
    sums.x = workers_sum(sums.x, memory);
  const float inverse = rsqrtf(sums.x * row.inverse_n + a.eps) * a.scale;
#pragma unroll
  for (int j = 0; j < kBatches; ++j) {
    const int i = at + j * kRowStep;
    v[j] = {v[j].x * inverse + r[j].x * a.scale, v[j].y * inverse + r[j].y * a.scale,
            v[j].z * inverse + r[j].z * a.scale, v[j].w * inverse + r[j].w * a.scale};
    if (writes && a.out && i < a.n) *reinterpret_cast<float4*>(a.out + i) = v[j];
  }
  if (!a.w_second) return 1.0f;
  const float whole = inverse * inverse * sums.y + a.scale * a.scale * sums.w;
  float squares = whole + 2.0f * inverse * a.scale * sums.z;
  if (squares < whole * (1.0f / 1024)) {  // for all workers: what is left of terms that cancel is too coarse
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kBatches; ++j) sum += dot(v[j], v[j]);
    workers_sync();  // the sums have been read
    squares = workers_sum(sum, memory);
  }
#pragma unroll
  for (int j = 0; j < kBatches; ++j) v[j] = times(v[j], w_second[j], 1.0f);
  return rsqrtf(squares * row.inverse_n + a.eps_second);
}

// What GroupMeta::sums holds: nothing, the halves' sums, or the whole group's times the scale, an f32.
enum class GroupSums { kNone, kHalves, kScaled };
template <GroupSums kSums>
__device__ __forceinline__ GroupMeta meta_of(float largest, int low, int up) {
  const float scale = largest * (1.0f / 127.0f);
  if constexpr (kSums == GroupSums::kScaled) return {scale, __float_as_int(scale * float(low + up))};
  return {scale, int(uint32_t(uint16_t(low)) | uint32_t(uint16_t(up)) << 16)};
}

// A value times `inverse`, at most 127 from zero, as the low byte of a word.
__device__ __forceinline__ uint32_t code_of(float v, float inverse) {
  return __float_as_uint(__fadd_rn(__fmul_rn(v, inverse), 12582912.0f));  // 1.5 * 2^23
}

__device__ __forceinline__ uint32_t codes_of(float4 v, float inverse) {
  const uint32_t low = __byte_perm(code_of(v.x, inverse), code_of(v.y, inverse), 0x0040),
                 high = __byte_perm(code_of(v.z, inverse), code_of(v.w, inverse), 0x0040);
  return __byte_perm(low, high, 0x5410);
}
__device__ __forceinline__ float largest_of(float4 v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ __forceinline__ int sum_of(uint32_t codes) { return __dp4a(int(codes), 0x01010101, 0); }

// Four values a lane, eight lanes a group, as the row's int8 groups, of kBatches times 2048 values at once:
// what quantize_lanes() makes. Values are in units of `unit`. `first`: of the lane's first four; those past n
// are not stored. kSplit: the even words of a group before the odd ones.
template <bool kSplit, GroupSums kSums, int kBatches>
__device__ __forceinline__ void store_fours(const float4* v, float unit, uint32_t first, int n, int8_t* q,
                                            GroupMeta* meta) {
  float largest[kBatches];
  uint32_t codes[kBatches];
  int sum[kBatches] = {}, other[kBatches] = {};
#pragma unroll
  for (int j = 0; j < kBatches; ++j) largest[j] = largest_of(v[j]);
#pragma unroll
  for (int o = 4; o > 0; o /= 2)
#pragma unroll
    for (int j = 0; j < kBatches; ++j) largest[j] = fmaxf(largest[j], __shfl_xor_sync(~0u, largest[j], o));
#pragma unroll
  for (int j = 0; j < kBatches; ++j)
    codes[j] = codes_of(v[j], largest[j] > 0 ? __fdividef(127.0f, largest[j]) : 0.0f);
  if constexpr (kSums != GroupSums::kNone) {
#pragma unroll
    for (int j = 0; j < kBatches; ++j) sum[j] = sum_of(codes[j]);
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
      for (int j = 0; j < kBatches; ++j) sum[j] += __shfl_xor_sync(~0u, sum[j], o);
#pragma unroll
    for (int j = 0; j < kBatches; ++j) other[j] = __shfl_xor_sync(~0u, sum[j], 4);
  }
  const uint32_t in_group = first / 4 % 8,
                 at = kSplit ? first - 4 * in_group + in_group % 2 * 16 + in_group / 2 * 4 : first;
#pragma unroll
  for (int j = 0; j < kBatches; ++j)
    if (int(first) + j * kRowStep < n) {
      reinterpret_cast<uint32_t*>(q + at)[j * kWorkers] = codes[j];
      if (in_group == 0)
        meta[first / kGroup + j * (kRowStep / kGroup)] = meta_of<kSums>(largest[j] * unit, sum[j], other[j]);
    }
}

// Sixteen values a lane, two lanes a group.
template <bool kSplit, GroupSums kSums>
__device__ __forceinline__ void store_sixteen(const float4 (&v)[4], bool has, int lane, int8_t* q,
                                              GroupMeta* meta) {
  float largest = fmaxf(fmaxf(largest_of(v[0]), largest_of(v[1])), fmaxf(largest_of(v[2]), largest_of(v[3])));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  const float inverse = largest > 0 ? __fdividef(127.0f, largest) : 0.0f;
  uint32_t w[4];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = codes_of(v[i], inverse);
    sum += sum_of(w[i]);
  }
  const int other = __shfl_xor_sync(~0u, sum, 1);
  if (!has) return;
  if constexpr (kSplit) {
    uint2* to = reinterpret_cast<uint2*>(q + lane / 2 * 32 + lane % 2 * 8);
    to[0] = {w[0], w[2]};
    to[2] = {w[1], w[3]};
  } else {
    *reinterpret_cast<uint4*>(q + lane * 16) = {w[0], w[1], w[2], w[3]};
  }
  if (lane % 2 == 0) meta[lane / 2] = meta_of<kSums>(largest, sum, other);
}

// A row whose first groups the launch before has made, and what is left of it.
template <bool kSplit, GroupSums kSums>
__device__ __forceinline__ void take_row(const StreamRow& row, int8_t* q, GroupMeta* meta) {
  constexpr int kCodes = kMaxStreamRow / 16 / kWorkers,
                kMetas = (kMaxStreamRow / kGroup + kWorkers - 1) / kWorkers;
  const int t = int(threadIdx.x), made = row.n_made, n = row.n;
  const int first = made + 4 * (t ^ (kWorkers - 32));  // by the last warps: the others have more to copy
  uint4 codes[kCodes];
  int2 of_group[kMetas];
  float4 v{};
  if (!row.ready) wait_for_inputs();
  if (first < n) v = load_row(row.x + first);
#pragma unroll
  for (int j = 0; j < kCodes; ++j)
    if (const int i = 16 * (t + j * kWorkers); i < made)
      codes[j] = __ldcg(reinterpret_cast<const uint4*>(row.made.q + i));
#pragma unroll
  for (int j = 0; j < kMetas; ++j)
    if (const int i = t + j * kWorkers; i < made / kGroup)
      of_group[j] = __ldcg(reinterpret_cast<const int2*>(row.made.meta + i));
  if (made < n) store_fours<kSplit, kSums, 1>(&v, 1.0f, uint32_t(first), n, q, meta);
#pragma unroll
  for (int j = 0; j < kCodes; ++j) {
    const int i = 16 * (t + j * kWorkers);
    if (i >= made) break;
    if constexpr (kSplit) {
      uint2* to = reinterpret_cast<uint2*>(q + i / kGroup * kGroup + i % kGroup / 2);
      to[0] = {codes[j].x, codes[j].z};
      to[2] = {codes[j].y, codes[j].w};
    } else {
      *reinterpret_cast<uint4*>(q + i) = codes[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kMetas; ++j) {
    const int i = t + j * kWorkers;
    if (i >= made / kGroup) break;
    if constexpr (kSums == GroupSums::kScaled)
      of_group[j].y = __float_as_int(__int_as_float(of_group[j].x) *
                                     float(low_sum(of_group[j].y) + high_sum(of_group[j].y)));
    *reinterpret_cast<int2*>(meta + i) = of_group[j];
  }
#pragma unroll 1
  for (int at = first + kRowStep; at - 4 * (t % 32) < n; at += kRowStep) {
    v = at < n ? load_row(row.x + at) : float4{};
    store_fours<kSplit, kSums, 1>(&v, 1.0f, uint32_t(at), n, q, meta);
  }
}

// Up to kBatches times 2048 values.
template <bool kSplit, GroupSums kSums, int kBatches>
__device__ __forceinline__ void make_short_row(const StreamRow& row, int8_t* q, GroupMeta* meta,
                                               StreamMemory& memory) {
  float4 v[kBatches];
  const int first = 4 * int(threadIdx.x), n = row.n;
  bool normed = false;
  float unit = 1;
  if constexpr (kBatches <= kRowBatch) normed = row.norm.x != nullptr;
  if (normed) {
    if constexpr (kBatches <= kRowBatch) unit = make_norm<kBatches>(row, memory, v);
  } else {
    if (!row.ready) wait_for_inputs();
#pragma unroll
    for (int j = 0; j < kBatches; ++j)
      v[j] = first + j * kRowStep < n ? load_row(row.x + first + j * kRowStep) : float4{};
  }
  store_fours<kSplit, kSums, kBatches>(v, unit, uint32_t(first), n, q, meta);
}

// The row as int8 groups in shared memory, for this thread to see after the next barrier of all workers.
template <bool kSplit, GroupSums kSums>
__device__ __forceinline__ void make_row(const StreamRow& row, int8_t* q, GroupMeta* meta,
                                         StreamMemory& memory) {
  const int n = row.n, t = int(threadIdx.x), lane = t % 32;
  if (row.n_made > 0) {
    take_row<kSplit, kSums>(row, q, meta);
  } else if (n <= kRowStep) {
    make_short_row<kSplit, kSums, 1>(row, q, meta, memory);
  } else if (n <= kRowBatch * kRowStep) {
    make_short_row<kSplit, kSums, kRowBatch>(row, q, meta, memory);
  } else if (n <= (kRowBatch + 1) * kRowStep) {
    make_short_row<kSplit, kSums, kRowBatch + 1>(row, q, meta, memory);
  } else {
    constexpr int kStep = 16 * kWorkers;
    float4 v[4], after[4];
    const auto load = [&](float4(&to)[4], int i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[j] = i < n ? load_float4(row.x + i + 4 * j) : float4{};
    };
    wait_for_inputs();
    load(v, 16 * t);
#pragma unroll 1
    for (int at = t / 32 * 512; at < n; at += kStep) {
      load(after, at + kStep + 16 * lane);
      store_sixteen<kSplit, kSums>(v, at + 16 * lane < n, lane, q + at, meta + at / 32);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = after[j];
    }
  }
}

__device__ __forceinline__ const StreamPart& part_of(const StreamPart (&parts)[3], int n_parts, int at) {
  int p = 0;
  while (p + 1 < n_parts && at >= parts[p + 1].first) ++p;
  return parts[p];
}

template <WeightForm F>
constexpr bool has_plane(int plane) {
  constexpr GroupBytes bytes = group_bytes(F);
  return plane == 0 ? true : plane == 1 ? bytes.high > 0 : plane == 2 ? bytes.aux > 0 : bytes.aux2 > 0;
}

__device__ __forceinline__ float add_up(const float* sums, int n) {
  float y = 0;
  if (n % 4 != 0) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) y += sums[i];
    return y;
  }
#pragma unroll 1
  for (int i = 0; i < n; i += 4) {
    const float4 s = load_float4(sums + i);
    y += (s.x + s.y) + (s.z + s.w);
  }
  return y;
}

struct Factors {
  float mul = 1, residual = 0;
  Factors() = default;
  __device__ __forceinline__ Factors(const StreamPart& part, int row)
      : mul(part.mul ? part.mul[row] : 1.0f), residual(part.residual ? part.residual[row] : 0.0f) {}
};

// What is stored of the product `y` of a part's row, with that of the second matrix.
__device__ __forceinline__ float output_of(const StreamPart& part, float y, float gate, Factors factors) {
  if (part.gelu) y = gelu_tanh(y);
  y = y * gate * factors.mul + factors.residual;
  if (part.softcap > 0)
    y = part.softcap * (1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * y * part.inverse_softcap)));
  return y;
}
__device__ __forceinline__ float store_output(const StreamPart& part, int row, float y, float gate) {
  return part.out[row] = output_of(part, y, gate, Factors(part, row));
}

// The values y of a warp's lanes, value `at` and those after it of a row, as their group.
__device__ __forceinline__ void leave_group(float y, int at, const QuantRows& to) {
  const int lane = int(threadIdx.x) % 32;
  const float largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(y))));
  const int8_t code = int8_t(code_of(y, largest > 0 ? __fdividef(127.0f, largest) : 0.0f));
  to.q[at] = code;
  const int sums = __reduce_add_sync(~0u, lane < 16 ? int(code) : int(code) * 65536);  // of both halves
  if (lane == 0)
    to.meta[at / kGroup] = meta_of<GroupSums::kHalves>(largest, low_sum(sums), (sums - low_sum(sums)) >> 16);
}

// The block's greatest key into the launch's.
__device__ __forceinline__ void leave_best(uint64_t key, uint64_t* keys, uint64_t* best) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
    key = max(key, uint64_t(__shfl_xor_sync(~0u, static_cast<unsigned long long>(key), o)));
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key;
  workers_sync();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kStreamWarps; ++i) key = max(key, keys[i]);
  atomicMax(reinterpret_cast<unsigned long long*>(best), static_cast<unsigned long long>(key));
}

// Shared memory to ask for, of which `bytes` are used, by so many blocks.
size_t launch_memory(const StreamArgs& args, int bytes, int blocks);
// `rows`: of what the parts' `first` counts.
StreamProduct stream_product(const StreamArgs& args, int rows);
// A block works on `at_once` of them at a time.
Deal deal_rows(const StreamArgs& args, int rows, int at_once);

// Eight matrix rows at a time, by the matrix units, or four of each matrix: whether this product is one of
// theirs.
inline constexpr int kTileRows = 8;
bool takes_tiles(const StreamArgs& args);
void run_tiles(const Launch& how, const StreamArgs& args);

}  // namespace kvasir::cuda
