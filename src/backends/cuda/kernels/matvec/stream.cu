#include <algorithm>

#include "backends/cuda/kernels/matvec/stream.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {
namespace {

constexpr int kStageMemory = 92 * 1024;  // of one stage at most
constexpr int kMaxChunkRows = 16;
constexpr int kChunkBytes = 6144;  // of one matrix, about: what a copy should be worth
// A gated pair fills its ring while attention and the output projection before it run, whose few reads wait
// behind that: its asks pause a nanosecond for so many bytes (docs/cuda-notes.md).
constexpr int kPauseBytes = 43;

// A chunk is a run of matrix rows: of both matrices of a gated pair.
struct Kernel : StreamProduct {
  int log_rows, log_split;  // rows of a chunk and side; warps that share a matrix row
  int log_slots;            // matrix rows at a time
  int stages, stage_magic;  // i / stages == i * stage_magic >> 16
  int plane_at[kPlanes];    // in one side of a stage
  int side_bytes;           // of a stage
  int copy_bytes;           // of a side's planes but those that shift
  int late;                 // chunks left to ask for when the next launch may start; -1: it may at once
  int pause;                // ns after each chunk asked for until the ring is full
  bool direct;              // the warp that has a row's sum stores it
};

// Units of the row that a lane holds.
template <WeightForm F>
constexpr int kUnits = Unit<F>::kValues == 16 ? 3 : 2;

// The plane of an f16 a block of 256 values has rows that are no multiple of what a copy moves: whole pieces
// around them are copied.
constexpr int kLast = kPlanes - 1, kPiece = 16;
template <WeightForm F>
constexpr bool kShifts = has_plane<F>(kLast);
__host__ __device__ constexpr int whole_pieces(int bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }
__device__ __forceinline__ const uint8_t* last_plane(const Kernel& k, const StreamPart& part, int side,
                                                     int chunk) {
  return part.plane[side][kLast] + int64_t(chunk - part.first) * (k.row_bytes[kLast] << k.log_rows);
}

// Weights need no waiting: they are on their way before the row exists.
template <WeightForm F>
__device__ __forceinline__ void fetch(const Kernel& k, StreamMemory& memory, uint8_t* stages, int n_chunks) {
  const uint64_t policy = read_once();
  const int block = int(blockIdx.x);
  int s = 0, phase = 1;
  const int late_at = k.late < 0 ? -1 : max(0, n_chunks - k.late);
#pragma unroll 1
  for (int i = 0; i < n_chunks; ++i) {
    const int c = k.deal.at(block, i);
    if (i >= k.stages) wait_barrier(&memory.empty[s], phase);
    if (i == late_at) let_next_start();
    const StreamPart& part = part_of(k.parts, k.n_parts, c);
    int expected = k.sides * k.copy_bytes;
    if constexpr (kShifts<F>)
      for (int side = 0; side < k.sides; ++side) {
        const int shift = int(reinterpret_cast<uintptr_t>(last_plane(k, part, side, c)) & 15);
        memory.shift[s][side] = shift;
        expected += whole_pieces(shift + (k.row_bytes[kLast] << k.log_rows));
      }
    arrive_expecting(&memory.full[s], expected);
#pragma unroll 1
    for (int side = 0; side < k.sides; ++side) {
      uint8_t* to = stages + (s * k.sides + side) * k.side_bytes;
#pragma unroll
      for (int p = 0; p < kPlanes; ++p)
        if (has_plane<F>(p) && !(p == kLast && kShifts<F>)) {
          const int bytes = k.row_bytes[p] << k.log_rows;
          copy_bulk(to + k.plane_at[p], part.plane[side][p] + int64_t(c - part.first) * bytes, bytes,
                    &memory.full[s], policy);
        }
      if constexpr (kShifts<F>) {
        const int shift = memory.shift[s][side];
        copy_bulk(to + k.plane_at[kLast], last_plane(k, part, side, c) - shift,
                  whole_pieces(shift + (k.row_bytes[kLast] << k.log_rows)), &memory.full[s], policy);
      }
    }
    if (++s == k.stages) s = 0, phase ^= 1;
    if (k.pause > 0 && i + 1 < k.stages) __nanosleep(unsigned(k.pause));
  }
}

// Where an output of this block goes, and what it is changed by.
struct Place {
  float* to = nullptr;
  Factors factors;
  Place() = default;
  __device__ __forceinline__ Place(const Kernel& k, int chunk, int o, int lane) {
    const int c = k.deal.at(int(blockIdx.x), chunk), in_chunk = o & ((1 << k.log_rows) - 1);
    if (k.n_parts == 1) {
      const int row = ((c - k.parts[0].first) << k.log_rows) + in_chunk;
      to = k.parts[0].out + row;
      if (lane == 0) factors = Factors(k.parts[0], row);
    } else {
      const StreamPart& part = part_of(k.parts, k.n_parts, c);
      to = part.out + ((c - part.first) << k.log_rows) + in_chunk;
    }
  }
  __device__ __forceinline__ void store(const Kernel& k, float y) const {
    *to = k.n_parts == 1 ? output_of(k.parts[0], y, 1.0f, factors) : y;
  }
};

// Products of matrix rows, in turn among groups of warps: sums[row][warp of the group], or the outputs.
template <WeightForm F>
__device__ __forceinline__ void multiply_rows(const Kernel& k, StreamMemory& memory, const uint8_t* stages,
                                              const InputView& input, float* sums, int n_rows) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int split = 1 << k.log_split, part = warp & (split - 1), n_units = k.row.n / Unit<F>::kValues;
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
    Place place;
    if (k.direct) place = Place(k, chunk, row, lane);
    wait_barrier(&memory.full[s], turn & 1);
    const int shift = kShifts<F> ? memory.shift[s][side] : 0;
    float sum = 0;
#pragma unroll
    for (int u = 0; u < kUnits<F>; ++u) {
      if ((u * split + part) * 32 >= n_units) break;
      Unit<F> w;
      w.take(at + k.plane_at[0] + in_side * k.row_bytes[0], at + k.plane_at[1] + in_side * k.row_bytes[1],
             at + k.plane_at[2] + in_side * k.row_bytes[2],
             at + k.plane_at[kLast] + shift + in_side * k.row_bytes[kLast], unit[u]);
      w.unpack(unit[u]);
      sum = w.dot(x[u], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      if (k.direct)
        place.store(k, sum);
      else
        sums[(row << k.log_split) + part] = sum;
      arrive(&memory.empty[s]);
    }
  }
}

__device__ __forceinline__ void store(const Kernel& k, const float* sums, int n_outputs,
                                      StreamMemory& memory) {
  const int split = 1 << k.log_split, n_grouped = k.groups.q ? k.deal.whole << k.log_rows : 0;
  uint64_t key = 0;
#pragma unroll 1
  for (int o = int(threadIdx.x); o < n_outputs; o += kWorkers) {
    const int chunk = o >> k.log_rows, in_side = o & ((1 << k.log_rows) - 1);
    const int c = k.deal.at(int(blockIdx.x), chunk);
    const StreamPart& part = part_of(k.parts, k.n_parts, c);
    const int row = ((c - part.first) << k.log_rows) + in_side;
    const float* from = sums + (((((chunk * k.sides) << k.log_rows) + in_side)) << k.log_split);
    const float gate = k.sides == 2 ? add_up(from + (1 << (k.log_rows + k.log_split)), split) : 1.0f;
    const float y = store_output(part, row, add_up(from, split), gate);
    if (o < n_grouped) leave_group(y, row, k.groups);
    if (k.best) key = max(key, make_key(y, row));
  }
  if (k.best) leave_best(key, reinterpret_cast<uint64_t*>(memory.scratch), k.best);
}

template <WeightForm F>
constexpr GroupSums kSums =
    F == WeightForm::kQ8 || F == WeightForm::kIq4Nl || F == WeightForm::kIq4Xs ? GroupSums::kNone
                                                                               : GroupSums::kHalves;

// The fetching warp goes on, the workers wait for each other and for the barriers that it made.
__device__ __forceinline__ void barriers_are_made() {
  asm volatile("bar.arrive 2, %0;" ::"n"(kStreamThreads) : "memory");
}
__device__ __forceinline__ void workers_sync_with_barriers() {
  asm volatile("bar.sync 2, %0;" ::"n"(kStreamThreads) : "memory");
}

// One warp asks for the weights of this block, chunk after chunk; the others make the row, multiply and
// store.
template <WeightForm F>
__global__ void __launch_bounds__(kStreamThreads, 2) stream_kernel(const __grid_constant__ Kernel k) {
  extern __shared__ __align__(128) uint8_t bytes[];
  StreamMemory& memory = *reinterpret_cast<StreamMemory*>(bytes);
  if (!k.leads && k.late < 0) let_next_start();
  int8_t* q = reinterpret_cast<int8_t*>(bytes + kStreamHeaderBytes);
  GroupMeta* meta = reinterpret_cast<GroupMeta*>(q + k.row.n);
  uint8_t* stages = reinterpret_cast<uint8_t*>(meta + k.row.n / 32);
  float* sums = reinterpret_cast<float*>(stages + k.stages * k.sides * k.side_bytes);
  const int n_chunks = k.deal.count(int(blockIdx.x));
  if (const int s = int(threadIdx.x) - kWorkers; s >= 0) {
    if (s < k.stages) {
      init_barrier(&memory.full[s], 1);
      init_barrier(&memory.empty[s], k.sides << (k.log_rows + k.log_split));
      publish_barriers();
    }
    __syncwarp();
    barriers_are_made();
    if (s == 0) fetch<F>(k, memory, stages, n_chunks);
    return;
  }
  make_row<false, kSums<F>>(k.row, q, meta, memory);
  workers_sync_with_barriers();
  if (k.leads) let_next_start();
  const int n_outputs = n_chunks << k.log_rows;
  multiply_rows<F>(k, memory, stages, InputView{nullptr, {q, meta}, k.row.n}, sums, n_outputs * k.sides);
  if (!k.direct) {
    workers_sync();
    store(k, sums, n_outputs, memory);
  }
  if (k.row.ready) wait_for_inputs();  // whoever waits for this launch waits for the one before
}

// Log2 of the rows of a chunk: copies of 16-byte pieces, not too small, and enough chunks for every block.
int chunk_rows(const MatvecArgs& args) {
  const WeightForm form = args.parts[0].w.form;
  const auto fits = [&](int rows) {
    const PlaneBytes b = plane_bytes(form, args.n_in, rows);
    for (int64_t bytes : {b.codes, b.high, b.aux})
      if (bytes % kPiece != 0) return false;
    for (int p = 0; p < args.n_parts; ++p) {
      const MatrixView& w = args.parts[p].w;
      if (plane_bytes(form, args.n_in, w.n_out).aux2 % kPiece != 0) return false;  // nothing past its end
    }
    for (int p = 0; p < args.n_parts; ++p)
      if (args.parts[p].n_out % rows != 0 || args.parts[p].first_row % rows != 0) return false;
    return true;
  };
  int total = 0, best = 0;
  for (int p = 0; p < args.n_parts; ++p) total += args.parts[p].n_out;
  for (int rows = 1; rows <= kMaxChunkRows; rows *= 2) {
    if (!fits(rows)) continue;
    const bool enough = best > 0 && (plane_bytes(form, args.n_in, best).codes >= kChunkBytes ||
                                     total / rows < 2 * kStreamBlocks);
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
  k.log_slots = log2_of(kStreamWarps) - k.log_split;
  if (k.stages >= chunks) return;
  while (1 << k.log_slots > k.stages * chunk_rows) --k.log_slots;
  const int turn = std::max(1, (1 << k.log_slots) / chunk_rows);
  k.stages -= k.stages % turn;
}

// The launch after a long gated pair fills its ring while this one ends: from the start it would take what
// this one waits for. Half a ring before the end is early enough for its blocks (docs/cuda-notes.md).
int late_start(const StreamArgs& args, const Kernel& k, int chunks) {
  const bool late = k.sides == 2 && chunks > k.stages && !args.leads && k.deal.blocks <= multiprocessors();
  return late ? (k.stages + 1) / 2 : -1;
}

// One warp has the whole sum of a row, and no other needs it. Of several parts outputs are bare sums.
bool stores_directly(const StreamArgs& args, const Kernel& k) {
  const MatvecArgs& product = args.product;
  const auto bare = [](const MatvecPart& p) { return !p.mul && !p.residual && !p.gelu && p.softcap == 0; };
  return k.sides == 1 && k.log_split == 0 && !(k.groups.q && k.deal.whole > 0) && !k.best &&
         (k.n_parts == 1 || std::all_of(product.parts, product.parts + product.n_parts, bare));
}

template <WeightForm F>
void run(const Launch& how, const StreamArgs& args) {
  const MatvecArgs& product = args.product;
  const int rows = chunk_rows(product);
  Kernel k{stream_product(args, rows)};
  k.log_rows = log2_of(rows);
  const int n_units = k.row.n / Unit<F>::kValues;
  while (32 * kUnits<F> << k.log_split < n_units) ++k.log_split;
  for (int p = 0; p < kPlanes; ++p) {
    const bool shifts = p == kLast && kShifts<F>;
    const int bytes = k.row_bytes[p] * rows;
    k.plane_at[p] = k.side_bytes;
    k.side_bytes += shifts ? whole_pieces(bytes) + kPiece : bytes;
    k.copy_bytes += shifts ? 0 : bytes;
  }
  k.deal = deal_rows(args, rows, 1);
  const int each = k.deal.whole + k.deal.each + (k.deal.more > 0);
  const int fixed = kStreamHeaderBytes + k.row.n + k.row.n / 32 * int(sizeof(GroupMeta)) +
                    (each * rows * k.sides << k.log_split) * int(sizeof(float));
  k.stages = std::clamp((kSmallMemory - fixed) / (k.sides * k.side_bytes), 1, std::min(kMaxStages, each));
  share_stages(k, each);
  k.stage_magic = 65536 / k.stages + 1;
  k.late = late_start(args, k, each);
  k.pause = k.sides == 2 ? k.side_bytes * 2 / kPauseBytes : 0;
  k.direct = stores_directly(args, k);
  const size_t bytes = launch_memory(args, fixed + k.stages * k.sides * k.side_bytes, k.deal.blocks);
  launch(how, dim3(unsigned(k.deal.blocks)), dim3(kStreamThreads), {bytes, kMostStreamMemory},
         stream_kernel<F>, k);
}

}  // namespace

size_t launch_memory(const StreamArgs& args, int bytes, int blocks) {
  return size_t(args.large && blocks <= multiprocessors() ? std::max(bytes, kLargeMemory) : bytes);
}

StreamProduct stream_product(const StreamArgs& args, int rows) {
  const MatvecArgs& product = args.product;
  StreamProduct k{};
  k.row = {args.norm,     args.beside,
           product.quant, args.made_groups * kGroup / 128 * 128,
           product.x,     1.0f / float(product.n_in),
           product.n_in};
  k.best = args.best;
  k.groups = args.groups;
  k.leads = args.leads;
  k.n_parts = product.n_parts;
  const bool pair = product.parts[0].w2.form != WeightForm::kNone;
  k.sides = pair ? 2 : 1;
  const GroupBytes group = group_bytes(product.parts[0].w.form);
  const double bytes[kPlanes] = {double(group.codes), double(group.high), group.aux, group.aux2};
  for (int i = 0; i < kPlanes; ++i) k.row_bytes[i] = int(bytes[i] * (product.n_in / 32));
  for (int p = 0; p < k.n_parts; ++p) {
    const MatvecPart& from = product.parts[p];
    StreamPart& to = k.parts[p];
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
    to.gelu = from.gelu || pair;
    to.first = k.n_firsts;
    k.n_firsts += from.n_out / rows;
  }
  return k;
}

Deal deal_rows(const StreamArgs& args, int rows, int at_once) {
  const MatvecArgs& product = args.product;
  int n_rows = 0, most_blocks = args.multiprocessors > 0 ? args.multiprocessors : multiprocessors();
  // Of a small part of a device each has several: what a block keeps of its rows would not fit.
  if (most_blocks < kStreamBlocks / 2 || most_blocks > kStreamBlocks) most_blocks = kStreamBlocks;
  for (int p = 0; p < product.n_parts; ++p) n_rows += product.parts[p].n_out;
  const int n = n_rows / rows;
  Deal deal{std::min(most_blocks, n), 0, 0, 0};
  if (args.groups.q && product.n_parts == 1 && n_rows % kGroup == 0) {
    const int n_groups = n_rows / kGroup, of_group = kGroup / rows;
    const int most = (n + deal.blocks - 1) / deal.blocks, up = (n_groups + deal.blocks - 1) / deal.blocks;
    deal.whole = n_groups / deal.blocks * of_group;
    if (n_groups % up == 0 &&
        up * of_group <= (most + at_once - 1) / at_once * at_once)  // nothing but groups
      deal.blocks = n_groups / up, deal.whole = up * of_group;
  }
  const int rest = n - deal.blocks * deal.whole;
  deal.each = rest / deal.blocks;
  deal.more = rest % deal.blocks;
  return deal;
}

int stream_groups(const MatvecArgs& product, int multiprocessors) {
  StreamArgs args;
  args.product = product;
  args.multiprocessors = multiprocessors;
  int8_t wanted = 0;
  args.groups.q = &wanted;
  const bool tiles = takes_tiles(args);
  const int sides = product.parts[0].w2.form != WeightForm::kNone ? 2 : 1;
  const int rows = tiles ? 1 : chunk_rows(product);
  const Deal deal = deal_rows(args, rows, tiles ? kTileRows / sides : 1);
  return deal.blocks * deal.whole * rows / kGroup;
}

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
  return sides * (one.codes + one.high + one.aux + one.aux2 + 2 * kPiece) <= kStageMemory;
}

void stream_matvec(const Launch& how, const StreamArgs& args) {
  if (takes_tiles(args)) return run_tiles(how, args);
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
    case WeightForm::kF32:
    case WeightForm::kF16:
    case WeightForm::kBf16:
    case WeightForm::kNone:
      break;
  }
  refuse_form("one row", args.product.parts[0].w.form);
}

}  // namespace kvasir::cuda
