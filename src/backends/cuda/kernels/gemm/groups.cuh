// Prompt products by warp groups: one brings weights and rows into shared memory, two multiply. A block makes
// 128 outputs of N rows; the two blocks of a cluster make neighbouring outputs of the same rows, and each
// brings half of those rows for both. Weights become left operands on their way to the registers, so codes
// travel as they are.
//
// The depth of all tiles, end to end, is cut into equal parts, one for each cluster: whole tiles, equal parts
// of one, or whatever is even (plan_of). A tile that is cut is finished by the cluster that has its end; that
// one adds what the others left, in order. Each cluster begins with what others wait for, and waits for
// earlier ones only.
#pragma once
#include <algorithm>

#include "backends/cuda/kernels/attention/wgmma.cuh"
#include "backends/cuda/kernels/cluster.cuh"
#include "backends/cuda/kernels/gemm/groups.h"
#include "backends/cuda/kernels/gemm/operands.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 384, kGroup = 128, kRanks = 2;
constexpr int64_t kShareBytes = 128 << 10;  // a block's sums
constexpr int64_t kFlagBytes = 4096;
constexpr int kStagingStride = 64 + 4, kStagingBytes = 32 * kStagingStride * 4;  // of a warp group

template <WeightForm F, int N>
struct Shape {
  static constexpr int kRight = N * kDepth * 2, kLeft = kTileRows * stage_bytes(F).row(),
                       kSlotBytes = (kRight + kLeft + 1023) / 1024 * 1024,
                       kSlots = std::min(8, (227 * 1024 - 1024 - 256 - 2 * kStagingBytes) / kSlotBytes),
                       kBytes = 1024 + kSlots * (kSlotBytes + 16) + 2 * kStagingBytes;
};

struct GroupsArgs {
  const uint16_t* x;
  const float* x_scale;
  uint8_t* shares;
  int n_rows, n_in, row_tiles, steps;  // steps: of a tile
  int each, total;                     // steps of a cluster, of all tiles
  int n_parts, first_tile[3];          // along the outputs
  bool wide[3];                        // four outputs at a time lie at multiples of 16 bytes
  GemmPart parts[3];
};
__host__ __device__ constexpr bool paired(const GemmPart& part) { return part.w2.form != WeightForm::kNone; }

// Steps [begin, end) of a tile's depth, and which outputs of which rows it makes: of a gated pair, 64 outputs
// of both matrices.
struct Work {
  int tile, begin, end, part, out0, row0;
};
template <int N, typename Do>
__device__ __forceinline__ void for_work(const GroupsArgs& a, int cluster, int rank, const Do& each) {
  const int first = cluster * a.each;
#pragma unroll 1
  for (int end = min(a.total, first + a.each); end > first;) {
    const int tile = (end - 1) / a.steps, zero = tile * a.steps, begin = max(first, zero);
    const int column = tile / a.row_tiles;
    int part = 0;
    while (part + 1 < a.n_parts && column >= a.first_tile[part + 1]) ++part;
    const int outs = paired(a.parts[part]) ? kTileRows / 2 : kTileRows;
    each(Work{tile, begin - zero, end - zero, part, ((column - a.first_tile[part]) * kRanks + rank) * outs,
              (tile - column * a.row_tiles) * N});
    end = begin;
  }
}

template <int kSlots>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

__device__ __forceinline__ void store_float(uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ float4 load_floats(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_float(uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}

template <int kSize>
__device__ __forceinline__ void copy_piece(uint32_t to, const uint8_t* from, bool valid) {
  if constexpr (kSize == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(valid ? kSize : 0),
                 "n"(kSize)
                 : "memory");
}

// The rest of a row: more bits, scales.
template <WeightForm F>
__device__ __forceinline__ void bring_scales(const MatrixView& w, int64_t row, bool valid, int thread,
                                             int step, uint32_t left) {
  constexpr StageBytes kBytes = stage_bytes(F);
  const uint32_t high = left + kTileRows * kBytes.codes, aux = high + kTileRows * kBytes.high,
                 aux2 = aux + kTileRows * kBytes.aux;
  const int64_t group = row * (w.n_in / 32) + 2 * step;
  using enum WeightForm;
  if constexpr (F == kQ8 || F == kQ4 || F == kQ5 || F == kQ6K || F == kIq4Nl)
    copy_piece<4>(aux + thread * 4, w.aux + group * 2, valid);
  if constexpr (F == kQ4M || F == kQ5M) copy_piece<8>(aux + thread * 8, w.aux + group * 4, valid);
  if constexpr (F == kQ4K || F == kQ5K) copy_piece<16>(aux + thread * 16, w.aux + group / 8 * 16, valid);
  if constexpr (F == kIq4Xs) copy_piece<4>(aux + thread * 4, w.aux + group / 4 * 4, valid);
  if constexpr (F == kQ5 || F == kQ5M || F == kQ5K)
    copy_piece<8>(high + thread * 8, w.high + group * 4, valid);
  if constexpr (F == kQ6K) copy_piece<16>(high + thread * 16, w.high + group * 8, valid);
  if constexpr (F == kQ6K || F == kIq4Xs) copy_piece<4>(aux2 + thread * 4, w.aux2 + group / 8 / 2 * 4, valid);
}

template <WeightForm F, int N>
__device__ __forceinline__ void bring(const GroupsArgs& a, int cluster, int rank, uint32_t slots,
                                      uint32_t full, uint32_t empty) {
  using S = Shape<F, N>;
  constexpr int kChunks = stage_bytes(F).codes / 16, kShare = N / kRanks, kRows = kGroup / kChunks;
  static_assert(kRows <= kTileRows / 2);
  const int thread = int(threadIdx.x) % kGroup, padded = padded_gemm_rows(a.n_rows);
  const int64_t row_bytes = int64_t(a.n_in) * stage_bytes(F).codes / kDepth;
  Turn<S::kSlots> turn;
  for_work<N>(a, cluster, rank, [&](const Work& work) {
    const GemmPart& part = a.parts[work.part];
    const int row = thread / kChunks, chunk = thread % kChunks, left_out = part.n_out - work.out0;
    // Rows from 64 on are of the other matrix in a pair.
    const bool pair = paired(part), second = pair && thread >= kTileRows / 2;
    const MatrixView& mine = second ? part.w2 : part.w;
    const int64_t first = part.first_row + work.out0;
    const int scale_row = second ? thread - kTileRows / 2 : thread;
    const uint8_t* low = part.w.codes + (first + row) * row_bytes + chunk * 16;
    const uint8_t* high =
        pair ? part.w2.codes + (first + row) * row_bytes + chunk * 16 : low + kTileRows / 2 * row_bytes;
    const int high_left = pair ? left_out : left_out - kTileRows / 2;
#pragma unroll 1
    for (int step = work.begin; step < work.end; ++step, turn.next()) {
      const uint32_t slot = slots + turn.slot * S::kSlotBytes, left = slot + S::kRight,
                     ready = full + turn.slot * 8;
      wait_barrier(empty + turn.slot * 8, turn.parity ^ 1);
      if (thread == 0) {
        arrive_expecting(ready, S::kRight);
        copy_bulk_to(slot + rank * kShare * 128,
                     a.x + (int64_t(step) * padded + work.row0 + rank * kShare) * kDepth, kShare * 128, ready,
                     (1 << kRanks) - 1);
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int r = i * kRows + row, half = i * kRows / (kTileRows / 2),
                  within = r - half * (kTileRows / 2);
        copy_piece<16>(left + chunk_place<F>(r, chunk),
                       (half ? high : low) + (within - row) * row_bytes + step * (kChunks * 16),
                       within < (half ? high_left : left_out));
      }
      bring_scales<F>(mine, first + scale_row, scale_row < left_out, thread, step, left);
      arrive_after_copies(ready);
    }
  });
}

// One warp group's 64 outputs of N rows.
template <WeightForm F, int N>
struct Consumer {
  using S = Shape<F, N>;
  const GroupsArgs& a;
  int cluster, rank, group, thread;
  uint32_t slots, full, empty, staging;

  __device__ __forceinline__ int row() const { return group * 64 + thread / 32 * 16 + thread % 32 / 4; }
  __device__ __forceinline__ void release(const Turn<S::kSlots>& turn) const {
    __syncwarp();
    if (thread % 32 < kRanks) arrive_at(empty + turn.slot * 8, thread % 32);
  }

  __device__ __forceinline__ void multiply(const Work& work, Turn<S::kSlots>& turn, float (&c)[N / 2]) const {
    const GemmPart& part = a.parts[work.part];
    const int out = part.first_row + work.out0 + (paired(part) ? row() % (kTileRows / 2) : row());
    const int blocks = a.n_in / 256, block[2] = {out * blocks, (out + 8) * blocks};
    Turn<S::kSlots> before = turn;
    int step = work.begin;
    const auto multiply_stage = [&](Operands& left) {
      const uint32_t slot = slots + turn.slot * S::kSlotBytes;
      wait_barrier(full + turn.slot * 8, turn.parity);
      make_operands<F>(slot + S::kRight, step, row(), thread % 4, block, left);
      const uint64_t right = tile_descriptor(slot, 0);
      begin_products();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) product_of_rows(c, left[k], right + k * 2);
      commit_products();
      wait_products<1>();
      if (step > work.begin) release(before);
      before = turn;
      turn.next();
      ++step;
    };
    Operands even, odd;
#pragma unroll 1
    while (step + 1 < work.end) {
      multiply_stage(even);
      multiply_stage(odd);
    }
    if (step < work.end) multiply_stage(even);
    wait_products<0>();
    hold_sums(c);
    release(before);
  }

  __device__ __forceinline__ float* share_of(int of) const {
    return reinterpret_cast<float*>(a.shares + kFlagBytes + (int64_t(of) * kRanks + rank) * kShareBytes) +
           (group * kGroup + thread) * 4;
  }
  __device__ __forceinline__ uint32_t* flag_of(int of) const {
    return reinterpret_cast<uint32_t*>(a.shares) + of * kRanks + rank;
  }
  static __device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

  __device__ __forceinline__ void leave_share(const float (&c)[N / 2]) const {
    float* to = share_of(cluster);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      *reinterpret_cast<float4*>(to + j * 1024) = {c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]};
    meet();
    if (group == 0 && thread == 0)  // a release of what the barrier has gathered
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag_of(cluster)), "r"(1) : "memory");
  }
  // What the clusters before this one made of the tile.
  __device__ __forceinline__ void add_shares(int tile, float (&c)[N / 2]) const {
    int first = tile * a.steps / a.each;
    // A thread a flag.
    if (const int from = first + group * kGroup + thread; from < cluster) {
      uint32_t there = 0;
      while (there == 0)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag_of(from)) : "memory");
      *flag_of(from) = 0;  // for the next launch
    }
    meet();
#pragma unroll 1
    for (; first < cluster; ++first) {
      const float* from = share_of(first);
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(from + j * 1024));
        c[4 * j] += v.x, c[4 * j + 1] += v.y, c[4 * j + 2] += v.z, c[4 * j + 3] += v.w;
      }
    }
  }

  // 32 rows at a time through shared memory, so that a thread stores four outputs of a row; one short loop,
  // because every instruction of this part is fetched anew for each tile. A pair's gate is one warp group's
  // sums, what it multiplies the other's.
  template <bool kPaired>
  __device__ __forceinline__ void store(const Work& work, float (&c)[N / 2]) const {
    const int lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
    const uint32_t mine = staging + group * kStagingBytes;
    const uint32_t to = mine + (2 * t * kStagingStride + warp * 16 + g) * 4;
    const int worker = kPaired ? group * kGroup + thread : thread, row = worker / 16,
              column = worker % 16 * 4;
    const uint32_t from = (kPaired ? staging : mine) + (row * kStagingStride + column) * 4;
    const int out = work.out0 + (kPaired ? 0 : group * 64) + column;
    const auto meet_readers = [&] {
      asm volatile("bar.sync %0, %1;" ::"r"(kPaired ? 1 : 2 + group), "n"(kPaired ? 256 : 128) : "memory");
    };
#pragma unroll 1
    for (int b = 0; b < N / 32; ++b) {
      meet_readers();  // the values before these have been read
#pragma unroll
      for (int i = 0; i < 16; ++i)
        store_float(to + ((i / 4 * 8 + i % 2) * kStagingStride + i / 2 % 2 * 8) * 4, c[i]);
      meet_readers();
      store_rows<kPaired>(work.part, work.row0 + b * 32 + row, out, from);
#pragma unroll
      for (int i = 0; i + 16 < N / 2; ++i) c[i] = c[i + 16];
    }
    if (kPaired) meet_readers();  // a tile of one matrix may be next: its groups meet by themselves
  }
  static __device__ __forceinline__ float capped(float y, float cap) {
    return cap - __fdividef(2 * cap, __expf(2 * __fdividef(y, cap)) + 1.0f);
  }
  // Outputs out .. out + 3 of rows r, r + kStride, ..
  template <bool kPaired>
  __device__ __forceinline__ void store_rows(int p, int r, int out, uint32_t from) const {
    constexpr int kRows = kPaired ? 2 : 4, kStride = 32 / kRows, kStep = kStride * kStagingStride * 4;
    const GemmPart& part = a.parts[p];
    if (!a.wide[p] || out + 4 > part.n_out) {
#pragma unroll 1
      for (int i = 0; i < 4 * kRows; ++i) {
        const int row = r + i / 4 * kStride, o = out + i % 4;
        if (row >= a.n_rows || o >= part.n_out) continue;
        const uint32_t at = from + i / 4 * kStep + i % 4 * 4;
        const float scale = a.x_scale[row];
        const float mul = kPaired    ? load_float(at + kStagingBytes) * scale
                          : part.mul ? part.mul[int64_t(row) * part.mul_stride + o]
                                     : 1.0f;
        float y = load_float(at) * scale;
        if (part.gelu) y = gelu_tanh(y);
        y = y * mul + (part.residual ? part.residual[int64_t(row) * part.out_stride + o] : 0.0f);
        part.out[int64_t(row) * part.out_stride + o] = part.softcap > 0 ? capped(y, part.softcap) : y;
      }
      return;
    }
    float scale[kRows], y[kRows][4];
    float4 mul[kRows], residual[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = r + i * kStride;
      const bool valid = row < a.n_rows;
      scale[i] = valid ? a.x_scale[row] : 0.0f;
      mul[i] = {1, 1, 1, 1};
      if (valid && part.mul)
        mul[i] = *reinterpret_cast<const float4*>(part.mul + int64_t(row) * part.mul_stride + out);
      residual[i] = {0, 0, 0, 0};
      if (valid && part.residual)
        residual[i] = *reinterpret_cast<const float4*>(part.residual + int64_t(row) * part.out_stride + out);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 v = load_floats(from + i * kStep);
      y[i][0] = v.x * scale[i], y[i][1] = v.y * scale[i], y[i][2] = v.z * scale[i], y[i][3] = v.w * scale[i];
      if (!kPaired) continue;
      const float4 m = load_floats(from + i * kStep + kStagingBytes);
      mul[i] = {m.x * scale[i], m.y * scale[i], m.z * scale[i], m.w * scale[i]};
    }
    if (part.gelu)
#pragma unroll
      for (int i = 0; i < kRows * 4; ++i) y[i / 4][i % 4] = gelu_tanh(y[i / 4][i % 4]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      y[i][0] = y[i][0] * mul[i].x + residual[i].x, y[i][1] = y[i][1] * mul[i].y + residual[i].y;
      y[i][2] = y[i][2] * mul[i].z + residual[i].z, y[i][3] = y[i][3] * mul[i].w + residual[i].w;
    }
    if (part.softcap > 0)
#pragma unroll
      for (int i = 0; i < kRows * 4; ++i) y[i / 4][i % 4] = capped(y[i / 4][i % 4], part.softcap);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (const int row = r + i * kStride; row < a.n_rows)
        *reinterpret_cast<float4*>(part.out + int64_t(row) * part.out_stride + out) = {y[i][0], y[i][1],
                                                                                       y[i][2], y[i][3]};
  }

  __device__ __forceinline__ void run() const {
    Turn<S::kSlots> turn;
    for_work<N>(a, cluster, rank, [&](const Work& work) {
      float c[N / 2] = {};
      multiply(work, turn, c);
      if (work.end < a.steps) return leave_share(c);
      if (work.begin > 0) add_shares(work.tile, c);
      if (paired(a.parts[work.part]))
        store<true>(work, c);
      else
        store<false>(work, c);
    });
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
template <WeightForm F, int N>
__global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 1)
    groups_kernel(const __grid_constant__ GroupsArgs a) {
  using S = Shape<F, N>;
  extern __shared__ __align__(16) uint8_t memory[];
  const uint32_t slots = (shared_address(memory) + 1023) / 1024 * 1024,
                 full = slots + S::kSlots * S::kSlotBytes, empty = full + S::kSlots * 8,
                 staging = empty + S::kSlots * 8;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kSlots; ++i) {
      init_barrier(full + i * 8, kGroup + 1);
      init_barrier(empty + i * 8, 8 * kRanks);  // every multiplying warp of the cluster
    }
    publish_barriers();
  }
  cluster_sync();
  wait_for_inputs();
  const int rank = int(blockIdx.x) % kRanks, cluster = int(blockIdx.x) / kRanks,
            warps = int(threadIdx.x) / kGroup;
  // The block has 384 x 168 registers: 128 x 40 + 256 x 232. A warp group that asks for more waits for ever.
  if (warps == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    bring<F, N>(a, cluster, rank, slots, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Consumer<F, N> consumer{a,     cluster, rank,  warps - 1, int(threadIdx.x) % kGroup,
                                  slots, full,    empty, staging};
    consumer.run();
  }
  meet_cluster();  // nobody leaves while the other copies into its memory
}
#else
template <WeightForm F, int N>
__global__ void groups_kernel(const __grid_constant__ GroupsArgs) {
  __trap();  // gemm_by_groups() is false there
}
#endif

inline int tiles_of(const GemmArgs& args, int rows) {
  int columns = 0;
  for (int i = 0; i < args.n_parts; ++i) {
    const int outs = kTileRows * kRanks / (paired(args.parts[i]) ? 2 : 1);
    columns += (args.parts[i].n_out + outs - 1) / outs;
  }
  return columns * ((args.n_rows + rows - 1) / rows);
}
inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <WeightForm F, int N>
void run(const Launch& how, const GemmArgs& args, int each) {
  GroupsArgs a{args.x, args.x_scale, args.shares, args.n_rows, args.n_in};
  a.row_tiles = (args.n_rows + N - 1) / N;
  a.steps = args.n_in / kDepth;
  a.n_parts = args.n_parts;
  GemmArgs before = args;
  for (int i = 0; i < args.n_parts; ++i) {
    const GemmPart& part = a.parts[i] = args.parts[i];
    before.n_parts = i;
    a.first_tile[i] = tiles_of(before, N) / a.row_tiles;
    a.wide[i] = part.out_stride % 4 == 0 && part.mul_stride % 4 == 0 && aligned(part.out) &&
                aligned(part.mul) && aligned(part.residual);
  }
  a.total = tiles_of(args, N) * a.steps;
  const int most = multiprocessors() / kRanks;  // shares have room for that many
  a.each = std::max(each, (a.total + most - 1) / most);
  launch(how, dim3(unsigned((a.total + a.each - 1) / a.each) * kRanks), dim3(kThreads), Shape<F, N>::kBytes,
         groups_kernel<F, N>, a);
}
template <WeightForm F>
void run(const Launch& how, const GemmArgs& args, const GemmPlan& plan) {
  if (plan.rows == 64) return run<F, 64>(how, args, plan.steps);
  if (plan.rows == 128) return run<F, 128>(how, args, plan.steps);
  run<F, 256>(how, args, plan.steps);
}

}  // namespace
}  // namespace kvasir::cuda
