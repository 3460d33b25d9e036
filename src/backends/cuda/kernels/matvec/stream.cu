#include <algorithm>

#include "backends/cuda/kernels/choose/key.cuh"
#include "backends/cuda/kernels/matvec/bulk.cuh"
#include "backends/cuda/kernels/matvec/small_units.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {
namespace {

constexpr int kBlocks = 132;  // one a multiprocessor
constexpr int kWarps = 16, kWorkers = 32 * kWarps, kThreads = kWorkers + 32;
constexpr int kStageMemory = 92 * 1024;     // two launches share a multiprocessor
constexpr size_t kMostMemory = 200 * 1024;  // of a launch
constexpr int kMaxStages = 16, kMaxChunkRows = 16;
constexpr int kChunkBytes = 6144;  // of one matrix, about: what a copy should be worth
constexpr int kPlanes = 4;         // codes, high, aux, aux2
constexpr int kHeaderBytes = 2 * kMaxStages * 8 + 2 * kWarps * 4;

// What a launch reads of one part, and what becomes of its products. A chunk is a run of matrix rows: of
// both matrices of a gated pair.
struct Part {
  const uint8_t* plane[2][kPlanes];
  float* out;
  const float* mul;
  const float* residual;
  float softcap, inverse_softcap;
  int first_chunk;
  bool gelu;
};

struct Kernel {
  Part parts[3];
  NormArgs norm;  // x null: the row is `x`
  const float* x;
  uint64_t* best;  // greatest key of the outputs, or null
  float inverse_n;
  int n_parts, n_in;
  int chunks_each, chunks_more;  // of a block; the first blocks have one more
  int sides;                     // matrices: 2 for a gated pair
  int log_rows, log_split;       // rows of a chunk and side; warps that share a matrix row
  int log_slots;                 // matrix rows at a time
  int stages, stage_magic;       // i / stages == i * stage_magic >> 16
  int row_bytes[kPlanes];        // of one matrix row
  int plane_at[kPlanes];         // in one side of a stage
  int side_bytes;
};

// Units of the row that a lane holds.
template <WeightForm F>
constexpr int kUnits = Unit<F>::kValues == 16 ? 3 : 2;

struct Memory {
  uint64_t full[kMaxStages], empty[kMaxStages];
  float scratch[2][kWarps];
};
static_assert(sizeof(Memory) == kHeaderBytes);

__device__ __forceinline__ void workers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// Sum over the workers; every one gets it. `scratch`: of its own for each call.
__device__ __forceinline__ float workers_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  workers_sync();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; i += 4) {
    const float4 s = *reinterpret_cast<const float4*>(scratch + i);
    sum += (s.x + s.y) + (s.z + s.w);
  }
  return sum;
}

__device__ __forceinline__ float4 load_float4(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ float square(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
__device__ __forceinline__ float4 times(float4 a, float4 b, float s) {
  return {a.x * b.x * s, a.y * b.y * s, a.z * b.z * s, a.w * b.w * s};
}

// Four values of the normed row; the first block stores the norms' outputs where they are wanted.
__device__ __forceinline__ float4 make_norm(const NormArgs& a, float inverse_n, Memory& memory) {
  const int i = 4 * int(threadIdx.x);
  const bool inside = i < a.n, writes = blockIdx.x == 0 && inside;
  float4 w{1, 1, 1, 1}, w_second{1, 1, 1, 1}, v{}, r{};
  if (a.w && inside) w = load_float4(a.w + i);
  if (a.w_second && inside) w_second = load_float4(a.w_second + i);
  wait_for_inputs();
  if (inside) v = load_float4(a.x + i);
  if (a.residual && inside) r = load_float4(a.residual + i);
  const float inverse = rsqrtf(workers_sum(square(v), memory.scratch[0]) * inverse_n + a.eps);
  const float4 y = times(v, w, inverse);
  v = {(y.x + r.x) * a.scale, (y.y + r.y) * a.scale, (y.z + r.z) * a.scale, (y.w + r.w) * a.scale};
  if (writes && a.out) *reinterpret_cast<float4*>(a.out + i) = v;
  if (a.w_second) {
    const float inverse_second = rsqrtf(workers_sum(square(v), memory.scratch[1]) * inverse_n + a.eps_second);
    v = times(v, w_second, inverse_second);
    if (writes && a.second) *reinterpret_cast<float4*>(a.second + i) = v;
  }
  return v;
}

// The row as int8 groups in shared memory.
__device__ __forceinline__ void make_row(const Kernel& k, int8_t* q, GroupMeta* meta, Memory& memory) {
  constexpr int kBatch = 3, kAll = 4 * kWorkers;
  const int n = k.n_in, t = int(threadIdx.x), first = t / 32 * 128;
  float4 v[kBatch];
  if (k.norm.x)
    v[0] = make_norm(k.norm, k.inverse_n, memory);
  else
    wait_for_inputs();
#pragma unroll 1
  for (int base = 0; base < n; base += kBatch * kAll) {
    if (!k.norm.x)
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (base + j * kAll + first < n) v[j] = load_float4(k.x + base + j * kAll + 4 * t);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = base + j * kAll + first;  // of the warp; n is a multiple of 128
      if (at >= n) break;
      const float values[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
      quantize_lanes(values, t % 32, q + at, meta + at / 32);
    }
  }
  workers_sync();
}

// The first chunk of a block: even shares.
__device__ __forceinline__ int chunk_of(const Kernel& k, int block) {
  return block * k.chunks_each + min(block, k.chunks_more);
}
__device__ __forceinline__ const Part& part_of(const Kernel& k, int chunk) {
  int p = 0;
  while (p + 1 < k.n_parts && chunk >= k.parts[p + 1].first_chunk) ++p;
  return k.parts[p];
}

template <WeightForm F>
constexpr bool has_plane(int plane) {
  constexpr GroupBytes bytes = group_bytes(F);
  return plane == 0 ? true : plane == 1 ? bytes.high > 0 : plane == 2 ? bytes.aux > 0 : bytes.aux2 > 0;
}

// Weights need no waiting: they are on their way before the row exists.
template <WeightForm F>
__device__ __forceinline__ void fetch(const Kernel& k, Memory& memory, uint8_t* stages, int begin, int end) {
  const int expected = k.sides * k.side_bytes;
  int s = 0, phase = 1;
#pragma unroll 1
  for (int c = begin; c < end; ++c) {
    if (c - begin >= k.stages) wait_barrier(&memory.empty[s], phase);
    const Part& part = part_of(k, c);
    arrive_expecting(&memory.full[s], expected);
#pragma unroll 1
    for (int side = 0; side < k.sides; ++side) {
      uint8_t* to = stages + (s * k.sides + side) * k.side_bytes;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p)
        if (has_plane<F>(p)) {
          const int bytes = k.row_bytes[p] << k.log_rows;
          copy_bulk(to + k.plane_at[p], part.plane[side][p] + int64_t(c - part.first_chunk) * bytes, bytes,
                    &memory.full[s]);
        }
    }
    if (++s == k.stages) s = 0, phase ^= 1;
  }
}

// Products of matrix rows, in turn among groups of warps: sums[row][warp of the group].
template <WeightForm F>
__device__ __forceinline__ void multiply_rows(const Kernel& k, Memory& memory, const uint8_t* stages,
                                              const InputView& input, float* sums, int n_rows) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int split = 1 << k.log_split, part = warp & (split - 1), n_units = k.n_in / Unit<F>::kValues;
  UnitInput<F> x[kUnits<F>];
  int unit[kUnits<F>];
#pragma unroll
  for (int u = 0; u < kUnits<F>; ++u) {
    const int at = (u * split + part) * 32 + lane;
    unit[u] = min(at, n_units - 1);
    x[u] = UnitInput<F>(input, 0, unit[u]);
    if (at >= n_units) x[u].scale = 0;
  }
  const int log_all = k.log_rows + k.sides - 1, slot = warp >> k.log_split;
  if (slot >> k.log_slots) return;
#pragma unroll 1
  for (int row = slot; row < n_rows; row += 1 << k.log_slots) {
    const int chunk = row >> log_all, turn = chunk * k.stage_magic >> 16, s = chunk - turn * k.stages;
    const int local = row & ((1 << log_all) - 1), side = local >> k.log_rows,
              in_side = local & ((1 << k.log_rows) - 1);
    const uint8_t* at = stages + (s * k.sides + side) * k.side_bytes;
    wait_barrier(&memory.full[s], turn & 1);
    float sum = 0;
#pragma unroll
    for (int u = 0; u < kUnits<F>; ++u) {
      if ((u * split + part) * 32 >= n_units) break;
      Unit<F> w;
      w.take(at + k.plane_at[0] + in_side * k.row_bytes[0], at + k.plane_at[1] + in_side * k.row_bytes[1],
             at + k.plane_at[2] + in_side * k.row_bytes[2], at + k.plane_at[3] + in_side * k.row_bytes[3],
             unit[u]);
      w.unpack(unit[u]);
      sum = w.dot(x[u], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      sums[(row << k.log_split) + part] = sum;
      arrive(&memory.empty[s]);
    }
  }
}

__device__ __forceinline__ float add_up(const float* sums, int n) {
  if (n < 4) return n == 1 ? sums[0] : sums[0] + sums[1];
  float y = 0;
#pragma unroll 1
  for (int i = 0; i < n; i += 4) {
    const float4 s = load_float4(sums + i);
    y += (s.x + s.y) + (s.z + s.w);
  }
  return y;
}

// The block's greatest key into the launch's.
__device__ __forceinline__ void leave_best(uint64_t key, uint64_t* keys, uint64_t* best) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
    key = max(key, uint64_t(__shfl_xor_sync(~0u, static_cast<unsigned long long>(key), o)));
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = key;
  workers_sync();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kWarps; ++i) key = max(key, keys[i]);
  atomicMax(reinterpret_cast<unsigned long long*>(best), static_cast<unsigned long long>(key));
}

__device__ __forceinline__ void store(const Kernel& k, const float* sums, int begin, int n_outputs,
                                      Memory& memory) {
  const int split = 1 << k.log_split;
  uint64_t key = 0;
#pragma unroll 1
  for (int o = int(threadIdx.x); o < n_outputs; o += kWorkers) {
    const int chunk = o >> k.log_rows, in_side = o & ((1 << k.log_rows) - 1);
    const Part& part = part_of(k, begin + chunk);
    const int row = ((begin + chunk - part.first_chunk) << k.log_rows) + in_side;
    const float mul = part.mul ? part.mul[row] : 1.0f;
    const float residual = part.residual ? part.residual[row] : 0.0f;
    const float* from = sums + (((((chunk * k.sides) << k.log_rows) + in_side)) << k.log_split);
    float y = add_up(from, split);
    if (part.gelu) y = gelu_tanh(y);
    if (k.sides == 2) y *= add_up(from + (1 << (k.log_rows + k.log_split)), split);
    y = y * mul + residual;
    if (part.softcap > 0)
      y = part.softcap * (1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * y * part.inverse_softcap)));
    part.out[row] = y;
    if (k.best) key = max(key, make_key(y, row));
  }
  if (k.best) leave_best(key, reinterpret_cast<uint64_t*>(memory.scratch), k.best);
}

// One warp asks for the weights of this block, chunk after chunk; the others make the row, multiply and
// store.
template <WeightForm F>
__global__ void __launch_bounds__(kThreads, 2) stream_kernel(const __grid_constant__ Kernel k) {
  extern __shared__ __align__(128) uint8_t bytes[];
  Memory& memory = *reinterpret_cast<Memory*>(bytes);
  let_next_start();
  int8_t* q = reinterpret_cast<int8_t*>(bytes + kHeaderBytes);
  GroupMeta* meta = reinterpret_cast<GroupMeta*>(q + k.n_in);
  uint8_t* stages = reinterpret_cast<uint8_t*>(meta + k.n_in / 32);
  float* sums = reinterpret_cast<float*>(stages + k.stages * k.sides * k.side_bytes);
  const int begin = chunk_of(k, int(blockIdx.x)), end = chunk_of(k, int(blockIdx.x) + 1);
  if (const int s = int(threadIdx.x) - kWorkers; s >= 0 && s < k.stages) {
    init_barrier(&memory.full[s], 1);
    init_barrier(&memory.empty[s], k.sides << (k.log_rows + k.log_split));
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= kWorkers) {
    if (threadIdx.x == kWorkers) fetch<F>(k, memory, stages, begin, end);
    return;
  }
  make_row(k, q, meta, memory);
  const int n_outputs = (end - begin) << k.log_rows;
  multiply_rows<F>(k, memory, stages, InputView{nullptr, {q, meta}, k.n_in}, sums, n_outputs * k.sides);
  workers_sync();
  store(k, sums, begin, n_outputs, memory);
}

// Log2 of the rows of a chunk: copies of 16-byte pieces, not too small, and enough chunks for every block.
int chunk_rows(const MatvecArgs& args) {
  const WeightForm form = args.parts[0].w.form;
  const auto fits = [&](int rows) {
    const PlaneBytes b = plane_bytes(form, args.n_in, rows);
    for (int64_t bytes : {b.codes, b.high, b.aux, b.aux2})
      if (bytes % 16 != 0) return false;
    if (group_bytes(form).aux2 > 0 && int64_t(args.n_in) * rows % 2048 != 0) return false;
    for (int p = 0; p < args.n_parts; ++p)
      if (args.parts[p].n_out % rows != 0 || args.parts[p].first_row % rows != 0) return false;
    return true;
  };
  int total = 0, best = 0;
  for (int p = 0; p < args.n_parts; ++p) total += args.parts[p].n_out;
  for (int rows = 1; rows <= kMaxChunkRows; rows *= 2) {
    if (!fits(rows)) continue;
    const bool enough =
        best > 0 && (plane_bytes(form, args.n_in, best).codes >= kChunkBytes || total / rows < 2 * kBlocks);
    if (!enough) best = rows;
  }
  return best;
}

int log2_of(int n) {
  int log = 0;
  while (1 << log < n) ++log;
  return log;
}

// A stage that is filled again must meet the same warps every time: one that skipped a turn could not tell
// the turn after it by its parity.
void share_stages(Kernel& k, int chunks) {
  const int chunk_rows = k.sides << k.log_rows;
  k.log_slots = log2_of(kWarps) - k.log_split;
  if (k.stages >= chunks) return;
  while (1 << k.log_slots > k.stages * chunk_rows) --k.log_slots;
  const int turn = std::max(1, (1 << k.log_slots) / chunk_rows);
  k.stages -= k.stages % turn;
}

template <WeightForm F>
void run(const Launch& how, const StreamArgs& args) {
  const MatvecArgs& product = args.product;
  Kernel k{};
  k.norm = args.norm;
  k.x = product.x;
  k.best = args.best;
  k.inverse_n = 1.0f / float(product.n_in);
  k.n_parts = product.n_parts;
  k.n_in = product.n_in;
  const int rows = chunk_rows(product);
  k.log_rows = log2_of(rows);
  k.sides = product.parts[0].w2.form != WeightForm::kNone ? 2 : 1;
  const int n_units = k.n_in / Unit<F>::kValues;
  while (32 * kUnits<F> << k.log_split < n_units) ++k.log_split;
  const PlaneBytes one = plane_bytes(F, k.n_in, rows);
  const int64_t planes[kPlanes] = {one.codes, one.high, one.aux, one.aux2};
  for (int p = 0; p < kPlanes; ++p) {
    k.row_bytes[p] = int(planes[p] / rows);
    k.plane_at[p] = k.side_bytes;
    k.side_bytes += int(planes[p]);
  }
  int n_chunks = 0;
  for (int p = 0; p < k.n_parts; ++p) {
    const MatvecPart& from = product.parts[p];
    Part& to = k.parts[p];
    for (int side = 0; side < k.sides; ++side) {
      const MatrixView& w = side ? from.w2 : from.w;
      const uint8_t* base[kPlanes] = {w.codes, w.high, w.aux, w.aux2};
      for (int i = 0; i < kPlanes; ++i)
        if (base[i]) to.plane[side][i] = base[i] + int64_t(from.first_row) * k.row_bytes[i];
    }
    to.out = from.out;
    to.mul = from.mul;
    to.residual = from.residual;
    to.softcap = from.softcap;
    to.inverse_softcap = from.softcap > 0 ? 1.0f / from.softcap : 0.0f;
    to.gelu = from.gelu || k.sides == 2;
    to.first_chunk = n_chunks;
    n_chunks += from.n_out / rows;
  }
  const int blocks = std::min(kBlocks, n_chunks), each = (n_chunks + blocks - 1) / blocks;
  k.chunks_each = n_chunks / blocks;
  k.chunks_more = n_chunks % blocks;
  k.stages = std::clamp(kStageMemory / (k.sides * k.side_bytes), 1, std::min(kMaxStages, each));
  share_stages(k, each);
  k.stage_magic = 65536 / k.stages + 1;
  const size_t bytes = kHeaderBytes + size_t(k.n_in) + size_t(k.n_in) / 32 * sizeof(GroupMeta) +
                       size_t(k.stages * k.sides) * size_t(k.side_bytes) +
                       (size_t(each * rows * k.sides) << k.log_split) * sizeof(float);
  launch(how, dim3(unsigned(blocks)), dim3(kThreads), {bytes, kMostMemory}, stream_kernel<F>, k);
}

}  // namespace

bool can_stream(const MatvecArgs& args) {
  const WeightForm form = args.parts[0].w.form;
  if (!wants_int8(form) || args.n_in % 128 != 0 || args.n_in > kMaxStreamRow) return false;
  const bool header = form == WeightForm::kQ4K || form == WeightForm::kQ5K || group_bytes(form).aux2 > 0;
  if (header && args.n_in % 256 != 0) return false;  // blocks of 256 values
  for (int p = 0; p < args.n_parts; ++p)
    if (args.parts[p].w.form != form || (args.parts[p].w2.form != WeightForm::kNone && args.n_parts > 1))
      return false;
  const int rows = chunk_rows(args);
  if (rows == 0) return false;
  const PlaneBytes one = plane_bytes(form, args.n_in, rows);
  const int sides = args.parts[0].w2.form != WeightForm::kNone ? 2 : 1;
  return sides * (one.codes + one.high + one.aux + one.aux2) <= kStageMemory;
}

void stream_matvec(const Launch& how, const StreamArgs& args) {
  switch (args.product.parts[0].w.form) {
    case WeightForm::kQ8:
      return run<WeightForm::kQ8>(how, args);
    case WeightForm::kQ4:
      return run<WeightForm::kQ4>(how, args);
    case WeightForm::kQ4M:
      return run<WeightForm::kQ4M>(how, args);
    case WeightForm::kQ5:
      return run<WeightForm::kQ5>(how, args);
    case WeightForm::kQ5M:
      return run<WeightForm::kQ5M>(how, args);
    case WeightForm::kQ4K:
      return run<WeightForm::kQ4K>(how, args);
    case WeightForm::kQ5K:
      return run<WeightForm::kQ5K>(how, args);
    case WeightForm::kQ6K:
      return run<WeightForm::kQ6K>(how, args);
    case WeightForm::kQ2K:
      return run<WeightForm::kQ2K>(how, args);
    case WeightForm::kQ3K:
      return run<WeightForm::kQ3K>(how, args);
    case WeightForm::kIq4Nl:
      return run<WeightForm::kIq4Nl>(how, args);
    case WeightForm::kIq4Xs:
      return run<WeightForm::kIq4Xs>(how, args);
    default:
      return;
  }
}

}  // namespace kvasir::cuda
