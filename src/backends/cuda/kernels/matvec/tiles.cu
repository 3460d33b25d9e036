// Eight matrix rows at a time against one row of activations, by the int8 matrix units.
//   A tile is eight rows (of both matrices of a gated pair: four of each). Of a block of 256 values lane
//   4 r + j brings groups j and 4 + j of row r. Sixteen values of a group are operand A of m16n8k32, in the
//   order they are loaded: words 0 and 2 stand in A's row r, words 1 and 3 in its row 8 + r. The activations
//   are operand B: its column 2 j holds the same words 0 and 2 of group j, column 2 j + 1 words 1 and 3, and
//   both are zero at the other groups' values. So elements 0 and 3 of the result are the group's product, in
//   the lane that brought the group and has its scale.
// Blocks of threads take even shares of the rows (whole groups of 32 first where groups are left: stream.cuh,
// Deal). The tiles' blocks of 256 values are shared among its warps in turn, and each warp copies its own, a
// few ahead, to a ring of its own.
#include <algorithm>

#include "backends/cuda/kernels/matvec/stream.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {
namespace {

struct Tiles : StreamProduct {
  int n_blocks, n_runs;       // of 256 values in a row; runs of them that a warp takes at a time
  int n_tiles, tile_outputs;  // of a block of threads; rows of one matrix in a tile
  int share, most_shares;     // runs a warp; warps that share a tile, at most
};

constexpr int kLine = 128;  // bytes
__host__ __device__ constexpr int whole_lines(int bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// How a block of a tile lies in a ring, 16 bytes a piece. Codes of a row stand as they do in memory, 128
// bytes a line: a copy whose lines are split among lines of shared memory takes longer. Pieces of odd rows
// change places so that a quarter of a warp, two rows, meets every bank once.
template <WeightForm F>
struct Staged {
  static constexpr GroupBytes kGroup = group_bytes(F);
  static constexpr int kCodes = kGroup.codes / 2, kHigh = kGroup.high / 2;  // pieces of a row
  static constexpr bool kScale = kGroup.aux2 > 0;                           // an f16 a row
  static constexpr int kHighAt = kTileRows * 16 * kCodes, kBlock = kHighAt + kTileRows * 16 * kHigh;
  // Blocks that a warp copies and multiplies at a time, and how often its ring holds them.
  static constexpr int kRun = kBlock <= 1024 ? 2 : 1, kDepth = kBlock <= 1024 || kBlock >= 2048 ? 2 : 3;
  // Of a run: codes and high bits block by block, then 16 bytes a row and block, then f16 scales.
  static constexpr int kAuxAt = kRun * kBlock, kScaleAt = kAuxAt + kRun * kTileRows * 16,
                       kBytes = whole_lines(kScaleAt + (kScale ? kTileRows * 8 : 0)), kRing = kDepth * kBytes;
  static_assert(!kScale || kRun == 1);
  static_assert(kGroup.aux == 2 && (kGroup.aux2 == 0 || kGroup.aux2 == 0.25));

  static __device__ __forceinline__ uint32_t code_at(uint32_t row, uint32_t piece) {
    return piece / 8 * (kTileRows * kLine) + row * kLine +
           (piece % 8 ^ (row & 1) * (kCodes == 8 ? 4 : 1)) * 16;
  }
};

// A group of 32 values of a row.
template <WeightForm F>
struct Group : Unit<F> {};
template <>
struct Group<WeightForm::kQ8> {
  int w[8];
  float scale;
  __device__ __forceinline__ void take(const uint8_t* low, const uint8_t* up, const uint8_t* aux) {
    const int4 a = load4(low), b = load4(up);
    w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
    w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    scale = __half2float(*reinterpret_cast<const __half*>(aux));
  }
  __device__ __forceinline__ void unpack(int) {}
  __device__ __forceinline__ float add(int low, int up, float x_scale, int, float acc) const {
    return acc + x_scale * scale * float(low + up);
  }
};

// c[16][8] += a[16][32] b[32][8]
__device__ __forceinline__ void multiply_int8(int (&c)[4], int a0, int a1, int a2, int a3, int b0, int b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_uint8(int (&c)[4], int a0, int a1, int a2, int a3, int b0, int b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Every other word of a group into x, in lanes that have a part of operand B; the others keep zeros.
__device__ __forceinline__ void load_activations(int (&x)[4], uint32_t from, bool mine) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %5, 0;\n"
      "@p ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
      "}\n"
      : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
      : "r"(from), "r"(int(mine)));
}

// Scales and minimums in a header of a block: sums of the activations are kept times their scale, as f32.
template <WeightForm F>
constexpr bool kHeader = F == WeightForm::kQ4K || F == WeightForm::kQ5K;

template <WeightForm F>
constexpr GroupSums kSums = kHeader<F>             ? GroupSums::kScaled
                            : F == WeightForm::kQ8 ? GroupSums::kNone
                                                   : GroupSums::kHalves;

template <WeightForm F>
constexpr bool kTwoScales = F == WeightForm::kQ6K || F == WeightForm::kQ2K || F == WeightForm::kQ3K;

// Both groups of the lane, whose scales and minimums are fields j and 4 + j of one header.
template <WeightForm F>
__device__ __forceinline__ float add_headed(const int4& header, uint32_t j, const int (&dots)[2],
                                            const GroupMeta* meta, float acc) {
  const uint32_t y = uint32_t(header.y) >> 8 * j, z = uint32_t(header.z) >> 8 * j,
                 w = uint32_t(header.w) >> 8 * j;
  const uint32_t scales[2] = {y & 63, (w & 15) | (y >> 2 & 48)},
                 minimums[2] = {z & 63, (w >> 4 & 15) | (z >> 2 & 48)};
  float sum = 0, least = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float2 of_x = *reinterpret_cast<const float2*>(meta + 4 * h);
    sum = fmaf(float(scales[h]), of_x.x * float(dots[h]), sum);
    least = fmaf(float(minimums[h]), of_x.y, least);
  }
  const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&header.x));
  return fmaf(d.x, sum, fmaf(-d.y, least, acc));
}

// What this lane's groups of block b of a run add to its row. `q`: of the lane's column of operand B; `meta`:
// of its first group.
template <WeightForm F>
__device__ __forceinline__ float multiply_block(const uint8_t* stage, uint32_t b, uint32_t r, uint32_t j,
                                                uint32_t q, bool column, int (&x)[4], const GroupMeta* meta,
                                                float acc) {
  using S = Staged<F>;
  const uint8_t* codes = stage + b * S::kBlock;
  const uint8_t* high = codes + S::kHighAt + r * 16 * S::kHigh + j * S::kGroup.high;
  const uint8_t* aux = stage + S::kAuxAt + (r * S::kRun + b) * 16 + (kHeader<F> ? 0 : j * 2);
  const uint8_t* aux2 = stage + S::kScaleAt + r * 8;
  if constexpr (S::kScale) aux2 += *reinterpret_cast<const uint32_t*>(aux2 + 4) & 2;
  [[maybe_unused]] int dots[2];
  [[maybe_unused]] int4 header;
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    Group<F> a;
    if constexpr (F == WeightForm::kQ8)
      a.take(codes + S::code_at(r, 8 * h + 2 * j), codes + S::code_at(r, 8 * h + 2 * j + 1), aux + 8 * h);
    else
      a.take(codes + S::code_at(r, 4 * h + j), high + 4 * h * S::kGroup.high, aux + (kHeader<F> ? 0 : 8 * h),
             aux2, 0);
    load_activations(x, q + h * 128, column);
    int low[4] = {}, up[4] = {};
    if constexpr (F == WeightForm::kQ4K) {  // high nibbles where they are: sixteen times their value
      constexpr int kLow = 0x0f0f0f0f, kUp = int(0xf0f0f0f0u);
      const int4 c = a.codes;
      multiply_uint8(low, c.x & kLow, c.y & kLow, c.z & kLow, c.w & kLow, x[0], x[1]);
      multiply_uint8(up, c.x & kUp, c.y & kUp, c.z & kUp, c.w & kUp, x[2], x[3]);
      low[0] += (up[0] + up[3]) >> 4;
    } else {
      a.unpack(4 * h + j);
      multiply_int8(low, a.w[0], a.w[1], a.w[2], a.w[3], x[0], x[1]);
      multiply_int8(kTwoScales<F> ? up : low, a.w[4], a.w[5], a.w[6], a.w[7], x[2], x[3]);
    }
    if constexpr (kHeader<F>) {
      dots[h] = low[0] + low[3];
      header = a.header;
    } else {
      const int2 of_x = *reinterpret_cast<const int2*>(meta + 4 * h);
      acc = a.add(low[0] + low[3], up[0] + up[3], __int_as_float(of_x.x), of_x.y, acc);
    }
  }
  if constexpr (kHeader<F>) return add_headed<F>(header, j, dots, meta, acc);
  return acc;
}

// Behind the row and its scales.
__host__ __device__ constexpr int rings_at(int n) {
  return whole_lines(kStreamHeaderBytes + n + n / kGroup * int(sizeof(GroupMeta)));
}

// The outputs of this block of threads and the runs of this warp.
struct Share {
  int warp, lane, block, n, first, last;
  __device__ __forceinline__ explicit Share(const Tiles& k) {
    int thread = int(threadIdx.x);
    block = int(blockIdx.x);
    asm volatile("" : "+r"(thread), "+r"(block));
    warp = thread / 32, lane = thread % 32;
    n = k.deal.count(block);
    first = warp * k.share, last = min(first + k.share, k.n_tiles * k.n_runs);
  }
};

// A warp's copies, block after block of tile after tile: lane 8 r + i copies codes of rows r and 4 + r, and
// lane 4 r + j what else row r has.
template <WeightForm F>
struct Copies {
  using S = Staged<F>;
  static constexpr int block_bytes(int plane) {  // of a row
    return plane == 0   ? 16 * S::kCodes
           : plane == 1 ? 16 * S::kHigh
           : plane == 2 ? 16
                        : int(8 * S::kGroup.aux2);
  }
  const uint8_t* codes[2];       // null: no such row
  const uint8_t* from[kPlanes];  // of the planes after the codes
  int tile, block, to;           // to: in a stage, of the first piece
  bool mine;                     // what `from` points to

  __device__ __forceinline__ Copies(const Tiles& k, const Share& share, int run) {
    tile = run / k.n_runs;
    block = S::kRun * (run - tile * k.n_runs);
    to = S::code_at(uint32_t(share.lane) / 8, uint32_t(share.lane) % 8);
    begin_tile(k, share);
  }

  __device__ __forceinline__ void begin_tile(const Tiles& k, const Share& share) {
    const int lane = share.lane, r = lane / 4, side = k.sides == 2 ? r / 4 : 0,
              in_side = k.sides == 2 ? r % 4 : r;
    const int local = tile * k.tile_outputs + in_side;
    const uint8_t* of_row = nullptr;
    mine = in_side < k.tile_outputs && local < share.n;
    if (mine) {
      const int output = k.deal.at(share.block, local);
      const StreamPart& part = part_of(k.parts, k.n_parts, output);
      const int64_t row = output - part.first;
      of_row = part.plane[side][0] + row * k.row_bytes[0] + block * block_bytes(0);
#pragma unroll
      for (int p = 1; p < kPlanes; ++p)
        if (has_plane<F>(p))
          from[p] = part.plane[side][p] + row * k.row_bytes[p] + block * block_bytes(p) +
                    (p < 2 || (p == 2 && S::kRun > 1) ? lane % 4 * 16 : 0);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(of_row), 16 * i + lane / 8 * 4);
      codes[i] = at ? reinterpret_cast<const uint8_t*>(at) + lane % 8 * 16 : nullptr;
    }
  }

  // Rows of a part follow each other but where those that fill groups end.
  __device__ __forceinline__ void next_tile(const Tiles& k, const Share& share) {
    block = 0, ++tile;
    const int local = tile * k.tile_outputs, past = local + k.tile_outputs;
    if (k.n_parts > 1 || past > share.n || (k.deal.whole > local - k.tile_outputs && k.deal.whole < past))
      return begin_tile(k, share);
    const int rows = k.tile_outputs - 1, over = k.n_runs * S::kRun - k.n_blocks;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (codes[i]) codes[i] += rows * k.row_bytes[0] - over * block_bytes(0);
#pragma unroll
    for (int p = 1; p < kPlanes; ++p)
      if (has_plane<F>(p)) from[p] += rows * k.row_bytes[p] - over * block_bytes(p);
  }

  __device__ __forceinline__ void copy_codes(uint8_t* stage, int lane, int ahead) {
    const uint32_t r = uint32_t(lane) / 4, j = uint32_t(lane) % 4;
#pragma unroll
    for (uint32_t i = 0; i < S::kCodes / 4; ++i)
      if (codes[i % 2])
        copy_async(stage + to + i % 2 * (4 * kLine) + i / 2 * (kTileRows * kLine),
                   codes[i % 2] + i / 2 * kLine + 16 * S::kCodes * ahead);
    if constexpr (S::kHigh > 0)
      if (mine && j < S::kHigh)
        copy_async(stage + S::kHighAt + (r * S::kHigh + j) * 16, from[1] + 16 * S::kHigh * ahead);
  }

  __device__ __forceinline__ void next(const Tiles& k, const Share& share, uint8_t* stage) {
    const int lane = share.lane, n = min(S::kRun, k.n_blocks - block);
    const uint32_t r = uint32_t(lane) / 4, j = uint32_t(lane) % 4;
    copy_codes(stage, lane, 0);
    if (S::kRun > 1 && n > 1) copy_codes(stage + S::kBlock, lane, 1);
    if (mine && int(j) < n) copy_async(stage + S::kAuxAt + (r * S::kRun + j) * 16, from[2]);
    if constexpr (S::kScale)
      if (mine && j == 1) {
        uint8_t* to_scale = stage + S::kScaleAt + r * 8;  // the word that holds it, and where
        const uint32_t at = uint32_t(reinterpret_cast<uintptr_t>(from[3])) & 2;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to_scale)),
                     "l"(from[3] - at)
                     : "memory");
        *reinterpret_cast<uint32_t*>(to_scale + 4) = at;
      }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (codes[i]) codes[i] += S::kRun * block_bytes(0);
#pragma unroll
    for (int p = 1; p < kPlanes; ++p)
      if (has_plane<F>(p)) from[p] += S::kRun * block_bytes(p);
    block += S::kRun;
    if (block >= k.n_blocks) next_tile(k, share);
  }
};

// This warp's share: sums[tile][row of the tile][warp among those that share the tile].
template <WeightForm F>
__device__ __forceinline__ void multiply_tiles(const Tiles& k, const Share& share, Copies<F>& copies,
                                               uint8_t* ring, const int8_t* q, const GroupMeta* meta,
                                               float* sums) {
  const int lane = share.lane, first = share.first, last = share.last;
  const uint32_t r = uint32_t(lane) / 4, j = uint32_t(lane) % 4;
  const bool column = uint32_t(lane) / 8 == j;
  uint32_t q_lane = shared_address(q) + j * 32 + r % 2 * 16;
  asm volatile("" : "+r"(q_lane));  // once: it takes a special register
  constexpr int kBytes = Staged<F>::kBytes, kDepth = Staged<F>::kDepth, kRun = Staged<F>::kRun;
  int x[4] = {}, tile = first / k.n_runs, block = kRun * (first - tile * k.n_runs), s = 0;
  float acc = 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    wait_copies<kDepth - 1>();
    __syncwarp();
    uint8_t* stage = ring + s * kBytes;
    const uint32_t q_at = q_lane + uint32_t(block) * 256;
    const GroupMeta* meta_at = meta + block * 8 + j;
    acc = multiply_block<F>(stage, 0, r, j, q_at, column, x, meta_at, acc);
    if constexpr (kRun > 1) {
      const float more = multiply_block<F>(stage, 1, r, j, q_at + 256, column, x, meta_at + 8, 0.0f);
      if (block + 1 < k.n_blocks) acc += more;
    }
    __syncwarp();
    if (i + kDepth < last) copies.next(k, share, stage);
    commit_copies();
    if (++s == kDepth) s = 0;
    block += kRun;
    if (block < k.n_blocks && i + 1 < last) continue;
    acc += __shfl_xor_sync(~0u, acc, 1);
    acc += __shfl_xor_sync(~0u, acc, 2);
    const int of_tile = share.warp - tile * k.n_runs / k.share;
    if (j == 0) sums[(tile * kTileRows + int(r)) * k.most_shares + of_tile] = acc;
    acc = 0, block = 0, ++tile;
  }
}

__device__ __forceinline__ float add_shares(const float* sums, int n) {
  float y = 0;
#pragma unroll 4
  for (int i = 0; i < n; ++i) y += sums[i];
  return y;
}

__device__ __forceinline__ void store_rows(const Tiles& k, const float* sums, const Share& share,
                                           StreamMemory& memory) {
  const int n_grouped = k.groups.q ? k.deal.whole : 0;
  uint64_t key = 0;
#pragma unroll 1
  for (int local = int(threadIdx.x); local < share.n; local += kWorkers) {
    const int o = k.deal.at(share.block, local);
    const StreamPart& part = part_of(k.parts, k.n_parts, o);
    const int tile = local / k.tile_outputs, in_side = local - tile * k.tile_outputs;
    const int n = ((tile + 1) * k.n_runs - 1) / k.share - tile * k.n_runs / k.share + 1;
    const float* from = sums + (tile * kTileRows + in_side) * k.most_shares;
    const float gate = k.sides == 2 ? add_shares(from + kTileRows / 2 * k.most_shares, n) : 1.0f;
    const int row = o - part.first;
    const float y = store_output(part, row, add_shares(from, n), gate);
    if (local < n_grouped) leave_group(y, row, k.groups);
    if (k.best) key = max(key, make_key(y, row));
  }
  if (k.best) leave_best(key, reinterpret_cast<uint64_t*>(memory.scratch), k.best);
}

// Weights need no waiting: they are on their way before the row exists.
template <WeightForm F>
__global__ void __launch_bounds__(kStreamThreads, 2) tiles_kernel(const __grid_constant__ Tiles k) {
  extern __shared__ __align__(128) uint8_t bytes[];
  constexpr int kRing = Staged<F>::kRing;
  StreamMemory& memory = *reinterpret_cast<StreamMemory*>(bytes);
  if (!k.leads) let_next_start();
  int8_t* q = reinterpret_cast<int8_t*>(bytes + kStreamHeaderBytes);
  GroupMeta* meta = reinterpret_cast<GroupMeta*>(q + k.row.n);
  uint8_t* rings = bytes + rings_at(k.row.n);
  float* sums = reinterpret_cast<float*>(rings + kStreamWarps * kRing);
  {
    const Share share(k);
    uint8_t* ring = rings + share.warp * kRing;
    Copies<F> copies(k, share, share.first);
#pragma unroll 1
    for (int d = 0; d < Staged<F>::kDepth; ++d) {
      if (share.first + d < share.last) copies.next(k, share, ring + d * (kRing / Staged<F>::kDepth));
      commit_copies();
    }
  }
  make_row<true, kSums<F>>(k.row, q, meta, memory);
  const Share share(k);  // anew: the row needs the registers
  Copies<F> copies(k, share, share.first + Staged<F>::kDepth);
  workers_sync();
  if (k.leads) let_next_start();
  multiply_tiles<F>(k, share, copies, rings + share.warp * kRing, q, meta, sums);
  workers_sync();
  store_rows(k, sums, share, memory);
  if (k.row.ready) wait_for_inputs();  // whoever waits for this launch waits for the one before
}

template <WeightForm F>
Tiles tiles_of(const StreamArgs& args) {
  Tiles k{stream_product(args, 1)};
  k.n_blocks = k.row.n / 256;
  k.n_runs = (k.n_blocks + Staged<F>::kRun - 1) / Staged<F>::kRun;
  const int tile_most = kTileRows / k.sides;
  k.deal = deal_rows(args, 1, tile_most);
  const int most = k.deal.whole + k.deal.each + (k.deal.more > 0);
  k.n_tiles = (most + tile_most - 1) / tile_most;
  k.tile_outputs = (most + k.n_tiles - 1) / k.n_tiles;
  k.share = (k.n_tiles * k.n_runs + kStreamWarps - 1) / kStreamWarps;
  k.most_shares = (k.n_runs + k.share - 2) / k.share + 1;
  return k;
}

template <WeightForm F>
int memory_of(const Tiles& k) {
  const int sum_bytes = k.n_tiles * kTileRows * k.most_shares * int(sizeof(float));
  return rings_at(k.row.n) + kStreamWarps * Staged<F>::kRing + sum_bytes;
}

template <WeightForm F>
void run(const Launch& how, const StreamArgs& args) {
  const Tiles k = tiles_of<F>(args);
  launch(how, dim3(unsigned(k.deal.blocks)), dim3(kWorkers),
         {launch_memory(args, memory_of<F>(k), k.deal.blocks), kMostStreamMemory}, tiles_kernel<F>, k);
}

// Where they beat products by lanes on an H200 (docs/cuda-notes.md): they take longer to begin.
bool win(const MatvecArgs& product) {
  const int sides = product.parts[0].w2.form != WeightForm::kNone ? 2 : 1;
  int rows = 0;
  for (int p = 0; p < product.n_parts; ++p) rows += product.parts[p].n_out * sides;
  const bool many = rows >= 256 * kStreamBlocks;
  switch (product.parts[0].w.form) {
    case WeightForm::kQ8:
      return many;
    case WeightForm::kQ4K:
    case WeightForm::kQ5K:
      return product.n_in > 16384 || rows >= (product.n_in > 2048 ? 48 : 128) * kStreamBlocks;
    case WeightForm::kQ6K:
      return many && sides == 2;
    default:
      return false;
  }
}

// Of forms that have tiles.
template <typename Do>
auto with_form(WeightForm form, const Do& then) {
  switch (form) {
    case WeightForm::kQ8:
      return then.template operator()<WeightForm::kQ8>();
    case WeightForm::kQ5K:
      return then.template operator()<WeightForm::kQ5K>();
    case WeightForm::kQ6K:
      return then.template operator()<WeightForm::kQ6K>();
    default:
      return then.template operator()<WeightForm::kQ4K>();
  }
}

}  // namespace

bool takes_tiles(const StreamArgs& args) {
  if (args.product.n_in % 256 != 0 || !win(args.product)) return false;
  return with_form(args.product.parts[0].w.form,
                   [&]<WeightForm F>() { return memory_of<F>(tiles_of<F>(args)) <= kSmallMemory; });
}

void run_tiles(const Launch& how, const StreamArgs& args) {
  with_form(args.product.parts[0].w.form, [&]<WeightForm F>() { run<F>(how, args); });
}

}  // namespace kvasir::cuda
