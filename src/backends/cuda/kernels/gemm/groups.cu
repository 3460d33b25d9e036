// Prompt products by warp groups: one brings weights and rows into shared memory, two multiply. A block makes
// 128 outputs of N rows; the two blocks of a cluster make neighbouring outputs of the same rows, and each
// brings half of those rows for both. Weights become left operands on their way to the registers, so codes
// travel as they are.
//
// Clusters share the work out evenly: the depth of all tiles, end to end, is cut into as many parts as there
// are clusters. A tile that is cut is finished by the cluster that has its end; that one adds what the others
// left, in order. Each cluster begins with what others wait for, and waits for earlier ones only.
#include <algorithm>

#include "backends/cuda/kernels/attention/wgmma.cuh"
#include "backends/cuda/kernels/gemm/groups.h"
#include "backends/cuda/kernels/gemm/operands.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 384, kGroup = 128, kRanks = 2;
constexpr int kLeastSteps = 10;             // of a cluster's part: adding what others left takes as long
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

// What all warp groups walk through in the same order.
struct Work {
  int steps, row_tiles, cluster, n_clusters;
  int64_t total;
  __device__ __forceinline__ int64_t begin_of(int c) const { return total * c / n_clusters; }
};
// Steps [begin, end) of a tile's depth.
struct Part {
  int tile, begin, end;
};
template <typename Do>
__device__ __forceinline__ void for_parts(const Work& work, const Do& each) {
  const int64_t first = work.begin_of(work.cluster);
#pragma unroll 1
  for (int64_t end = work.begin_of(work.cluster + 1); end > first;) {
    const int tile = int((end - 1) / work.steps);
    const int64_t zero = int64_t(tile) * work.steps, begin = max(first, zero);
    each(Part{tile, int(begin - zero), int(end - zero)});
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
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
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
  if constexpr (F == WeightForm::kQ8 || F == WeightForm::kQ4 || F == WeightForm::kQ6K)
    copy_piece<4>(aux + thread * 4, w.aux + group * 2, valid);
  if constexpr (F == WeightForm::kQ4K) copy_piece<16>(aux + thread * 16, w.aux + group / 8 * 16, valid);
  if constexpr (F == WeightForm::kQ6K) {
    copy_piece<16>(high + thread * 16, w.high + group * 8, valid);
    copy_piece<4>(aux2 + thread * 4, w.aux2 + group / 8 / 2 * 4, valid);
  }
}

template <WeightForm F, int N>
__device__ __forceinline__ void bring(const GemmArgs& a, const Work& work, int rank, uint32_t slots,
                                      uint32_t full, uint32_t empty) {
  using S = Shape<F, N>;
  constexpr int kChunks = stage_bytes(F).codes / 16, kShare = N / kRanks;
  const int thread = int(threadIdx.x) % kGroup, padded = padded_gemm_rows(a.n_rows);
  const int64_t row_bytes = int64_t(a.n_in) * stage_bytes(F).codes / kDepth;
  Turn<S::kSlots> turn;
  for_parts(work, [&](const Part& part) {
    const int out0 = (part.tile / work.row_tiles * kRanks + rank) * kTileRows,
              row0 = part.tile % work.row_tiles * N;
    const int row = thread / kChunks, chunk = thread % kChunks;
    const uint8_t* codes = a.w.codes + (int64_t(a.first) + out0 + row) * row_bytes + chunk * 16;
#pragma unroll 1
    for (int step = part.begin; step < part.end; ++step, turn.next()) {
      const uint32_t slot = slots + turn.slot * S::kSlotBytes, left = slot + S::kRight,
                     ready = full + turn.slot * 8;
      wait_barrier(empty + turn.slot * 8, turn.parity ^ 1);
      if (thread == 0) {
        arrive_expecting(ready, S::kRight);
        copy_bulk_to(slot + rank * kShare * 128,
                     a.x + (int64_t(step) * padded + row0 + rank * kShare) * kDepth, kShare * 128, ready,
                     (1 << kRanks) - 1);
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int r = i * (kGroup / kChunks) + row;
        copy_piece<16>(left + chunk_place<F>(r, chunk),
                       codes + i * (kGroup / kChunks) * row_bytes + step * (kChunks * 16),
                       out0 + r < a.n_out);
      }
      bring_scales<F>(a.w, int64_t(a.first) + out0 + thread, out0 + thread < a.n_out, thread, step, left);
      arrive_after_copies(ready);
    }
  });
}

// One warp group's 64 outputs of N rows.
template <WeightForm F, int N>
struct Consumer {
  using S = Shape<F, N>;
  const GemmArgs& a;
  const Work& work;
  int rank, group, thread;
  uint32_t slots, full, empty, staging;

  __device__ __forceinline__ void meet_group() const {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
  }
  __device__ __forceinline__ int row() const { return group * 64 + thread / 32 * 16 + thread % 32 / 4; }
  __device__ __forceinline__ void release(const Turn<S::kSlots>& turn) const {
    __syncwarp();
    if (thread % 32 < kRanks) arrive_at(empty + turn.slot * 8, thread % 32);
  }

  __device__ __forceinline__ void multiply_part(const Part& part, Turn<S::kSlots>& turn,
                                                float (&c)[N / 2]) const {
    const int out = (part.tile / work.row_tiles * kRanks + rank) * kTileRows + row();
    const int blocks = a.n_in / 256, block[2] = {(a.first + out) * blocks, (a.first + out + 8) * blocks};
    Turn<S::kSlots> before = turn;
    int step = part.begin;
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
      if (step > part.begin) release(before);
      before = turn;
      turn.next();
      ++step;
    };
    Operands even, odd;
#pragma unroll 1
    while (step + 1 < part.end) {
      multiply_stage(even);
      multiply_stage(odd);
    }
    if (step < part.end) multiply_stage(even);
    wait_products<0>();
    hold_sums(c);
    release(before);
  }

  __device__ __forceinline__ float* share_of(int cluster) const {
    return reinterpret_cast<float*>(a.shares + kFlagBytes +
                                    (int64_t(cluster) * kRanks + rank) * kShareBytes) +
           (group * kGroup + thread) * 4;
  }
  __device__ __forceinline__ uint32_t* flag_of(int cluster) const {
    return reinterpret_cast<uint32_t*>(a.shares) + cluster * kRanks + rank;
  }
  static __device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

  __device__ __forceinline__ void leave_share(const float (&c)[N / 2]) const {
    float* to = share_of(work.cluster);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      *reinterpret_cast<float4*>(to + j * 1024) = {c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]};
    __threadfence();
    meet();
    if (group == 0 && thread == 0)
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag_of(work.cluster)), "r"(1) : "memory");
  }
  // What the clusters before this one made of the tile.
  __device__ __forceinline__ void add_shares(int tile, float (&c)[N / 2]) const {
    int first = work.cluster;
    while (work.begin_of(first) > int64_t(tile) * work.steps) --first;
    // A thread a flag.
    if (const int from = first + group * kGroup + thread; from < work.cluster) {
      uint32_t there = 0;
      while (there == 0)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag_of(from)) : "memory");
      *flag_of(from) = 0;  // for the next launch
    }
    meet();
#pragma unroll 1
    for (; first < work.cluster; ++first) {
      const float* from = share_of(first);
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(from + j * 1024));
        c[4 * j] += v.x, c[4 * j + 1] += v.y, c[4 * j + 2] += v.z, c[4 * j + 3] += v.w;
      }
    }
  }

  // 32 rows at a time through shared memory, so that a warp stores 32 outputs of a row; one short loop,
  // because every instruction of this part is fetched anew for each tile.
  __device__ __forceinline__ void store(int tile, float (&c)[N / 2]) const {
    const int lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
    const int out = (tile / work.row_tiles * kRanks + rank) * kTileRows + group * 64 + thread % 64;
    const uint32_t mine = staging + group * kStagingBytes;
    const uint32_t to = mine + (2 * t * kStagingStride + warp * 16 + g) * 4,
                   from = mine + (thread / 64 * kStagingStride + thread % 64) * 4;
#pragma unroll 1
    for (int b = 0; b < N / 32; ++b) {
      meet_group();  // the values before these have been read
#pragma unroll
      for (int i = 0; i < 16; ++i)
        store_float(to + ((i / 4 * 8 + i % 2) * kStagingStride + i / 2 % 2 * 8) * 4, c[i]);
      meet_group();
      if (out < a.n_out) store_rows(tile % work.row_tiles * N + b * 32 + thread / 64, out, from);
#pragma unroll
      for (int i = 0; i + 16 < N / 2; ++i) c[i] = c[i + 16];
    }
  }
  // Rows r, r + 2, .. of an output.
  __device__ __forceinline__ void store_rows(int r, int out, uint32_t from) const {
    constexpr int kRows = 16;
    float y[kRows], mul[kRows], residual[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool valid = r + 2 * i < a.n_rows;
      y[i] = load_float(from + 2 * i * kStagingStride * 4) * (valid ? a.x_scale[r + 2 * i] : 0.0f);
      mul[i] = valid && a.mul ? a.mul[int64_t(r + 2 * i) * a.mul_stride + out] : 1.0f;
      residual[i] = valid && a.residual ? a.residual[int64_t(r + 2 * i) * a.out_stride + out] : 0.0f;
    }
    if (a.gelu)
#pragma unroll
      for (int i = 0; i < kRows; ++i) y[i] = gelu_tanh(y[i]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) y[i] = y[i] * mul[i] + residual[i];
    if (a.softcap > 0)
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        y[i] = a.softcap - __fdividef(2 * a.softcap, __expf(2 * y[i] / a.softcap) + 1.0f);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (r + 2 * i < a.n_rows) a.out[int64_t(r + 2 * i) * a.out_stride + out] = y[i];
  }

  __device__ __forceinline__ void run() const {
    Turn<S::kSlots> turn;
    for_parts(work, [&](const Part& part) {
      float c[N / 2] = {};
      multiply_part(part, turn, c);
      if (part.end < work.steps) return leave_share(c);
      if (part.begin > 0) add_shares(part.tile, c);
      store(part.tile, c);
    });
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
template <WeightForm F, int N>
__global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 1)
    groups_kernel(const __grid_constant__ GemmArgs a, int row_tiles, int64_t total) {
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
  meet_cluster();
  wait_for_inputs();
  const int rank = int(blockIdx.x) % kRanks, warps = int(threadIdx.x) / kGroup;
  const Work work{a.n_in / kDepth, row_tiles, int(blockIdx.x) / kRanks, int(gridDim.x) / kRanks, total};
  // The block has 384 x 168 registers: 128 x 40 + 256 x 232. A warp group that asks for more waits for ever.
  if (warps == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    bring<F, N>(a, work, rank, slots, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Consumer<F, N> consumer{a,     work, rank,  warps - 1, int(threadIdx.x) % kGroup,
                                  slots, full, empty, staging};
    consumer.run();
  }
  meet_cluster();  // nobody leaves while the other copies into its memory
}
#else
template <WeightForm F, int N>
__global__ void groups_kernel(const __grid_constant__ GemmArgs, int, int64_t) {
  __trap();  // gemm_by_groups() is false there
}
#endif

template <WeightForm F, int N>
void run(const Launch& how, const GemmArgs& args) {
  const int row_tiles = (args.n_rows + N - 1) / N, out = kTileRows * kRanks;
  const int64_t total = int64_t((args.n_out + out - 1) / out) * row_tiles * (args.n_in / kDepth);
  const int64_t clusters = std::clamp<int64_t>(total / kLeastSteps, 1, multiprocessors() / kRanks);
  launch(how, dim3(unsigned(clusters) * kRanks), dim3(kThreads), Shape<F, N>::kBytes, groups_kernel<F, N>,
         args, row_tiles, total);
}
template <WeightForm F>
void run(const Launch& how, const GemmArgs& args) {
  if (args.n_rows <= 64) return run<F, 64>(how, args);
  // Few tiles are cut often: smaller ones leave less to add.
  constexpr int kFew = 33;
  const int out = kTileRows * kRanks, tiles = (args.n_out + out - 1) / out * ((args.n_rows + 255) / 256);
  if (args.n_rows <= 128 || tiles < kFew) return run<F, 128>(how, args);
  run<F, 256>(how, args);
}

}  // namespace

bool gemm_by_groups(int n_in, bool portable) {
#ifdef KVASIR_SM_90A
  return !portable && n_in % kDepth == 0 && has_warp_group_products();
#else
  return n_in < 0 && portable;
#endif
}
bool groups_read(WeightForm form) { return reads_form(form); }
size_t gemm_share_bytes() { return size_t(kFlagBytes + multiprocessors() * kShareBytes); }

void gemm_groups(const Launch& how, const GemmArgs& args) {
  switch (args.w.form) {
    case WeightForm::kQ8:
      return run<WeightForm::kQ8>(how, args);
    case WeightForm::kQ4:
      return run<WeightForm::kQ4>(how, args);
    case WeightForm::kQ4K:
      return run<WeightForm::kQ4K>(how, args);
    case WeightForm::kQ6K:
      return run<WeightForm::kQ6K>(how, args);
    default:
      return run<WeightForm::kF16>(how, args);
  }
}

}  // namespace kvasir::cuda
