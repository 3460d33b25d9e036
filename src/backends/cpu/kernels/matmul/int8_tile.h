// The int8 consumer: one template for every weight type W (types/) and vector type V (simd_*.h).
//
// A sub-block is what shares one scale: a block of 32 values, or a half of 16. For each, in rising order,
//   isum = sum u * a - offset * sum(a)                exact in int32
//   t    = scale * isum [+ min * sum(a), by FMA]      one rounding each
//   acc  = FMA(t, da, acc)
// so the bits depend on nothing but this order: the same for every V, row count and path.
//
// The integer sum starts at the bits of kMagic = 1.5 * 2^23: read as a float it is kMagic + isum exactly
// (|isum| < 2^22), and FMA(that, scale, -kMagic * scale) is scale * isum correctly rounded, because kMagic *
// scale is exact (a scale is an f16 times an integer of at most 8 bits). That saves the conversion: 4 float
// instructions a sub-block and 32 outputs, not 6.
#pragma once
#include <utility>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"
#include "backends/cpu/kernels/matmul/variant.h"
#include "base/mutation.h"

namespace kvasir::cpu::matmul {

inline constexpr int kChunkBlocks = 16;  // blocks unpacked at a time: 16 KiB of codes, at home in L1

// What the row loop needs to know of a type.
template <CodeForm kFormIn, int kOffsetIn, bool kMinIn, bool kHalvesIn>
struct SumKind {
  static constexpr CodeForm kForm = kFormIn;
  static constexpr int kOffset = kOffsetIn;  // of the codes a dot product sees
  static constexpr bool kMin = kMinIn;
  static constexpr int kSubs = kHalvesIn ? 2 : 1;  // sub-blocks a block
  static constexpr int kSteps = 8 / kSubs;         // four-way dot products a sub-block
  static constexpr int kVectors = kMin ? 3 : 2;    // scale, -kMagic * scale, min: [32] floats each
};

// Unpacked blocks of one panel.
struct Chunk {
  const std::byte* codes;  // images, code_stride apart
  size_t code_stride;
  const float* scales;  // [block][sub-block][kVectors][32]
  int n_blocks;
  const std::byte* ahead;  // the next chunk in the stream
  int ahead_lines;         // how many lines of 64 bytes it has
};

// Where rows of activations start: those of one row count.
struct ActivationRows {
  const std::byte* blocks;
  size_t stride;
  int laid_out;
};

template <class V, class W>
struct Unpack {
  using Bytes = typename V::Bytes;
  static constexpr CodeForm kForm = V::code_form(W::kOffset, W::kHasTable ? 8 : W::kBits);
  static constexpr int kOffset = kForm == CodeForm::kTop128   ? 128
                                 : kForm == CodeForm::kSigned ? 0
                                                              : W::kOffset;
  using Kind = SumKind<kForm, kOffset, W::kMin, W::kHalves>;
  // Top-aligned codes carry a factor 2^kShift, taken out of the scale (exact).
  static constexpr int kShift = kForm == CodeForm::kTop128 && !W::kHasTable ? 8 - W::kBits : 0;
  // The planes are the image already.
  static constexpr bool kDirect = W::kBits == 8 && kForm == CodeForm::kTop128;

  // Chunk z at byte `offset`.
  template <int z>
  [[gnu::always_inline]] static Bytes codes(const std::byte* planes, int offset) {
    Bytes code = load_codes<V, W::kLow, W::kHigh, kShift, z>(planes, offset);
    if constexpr (W::kHasTable) code = V::lookup(W::kTable, code);
    if constexpr (kForm == CodeForm::kSigned && W::kOffset != 0) code = V::sub_bytes(code, W::kOffset);
    return code;
  }

  // V::kLanes rows from `lane`; out.offset is -kMagic * scale.
  [[gnu::always_inline]] static void scales(const std::byte* unit, int j, int lane, Scales<V>& out) {
    W::template scales<V>(unit, j, lane, out);
    if (Kind::kSubs == 2 && mutated(Mutation::kHalfScale)) out.scale[1] = out.scale[0];
    for (int h = 0; h < Kind::kSubs; ++h) {
      if constexpr (kShift > 0) out.scale[h] = V::mul(out.scale[h], V::set1(1.0f / (1 << kShift)));
      out.offset[h] = V::mul(out.scale[h], V::set1(-kMagic));
    }
  }

  static void block(const std::byte* unit, int j, std::byte* image, float* vectors) {
    const std::byte* planes = unit + W::planes_offset(j);
    if constexpr (!kDirect)
      for (int offset = 0; offset < 64; offset += V::kBytes)
        [&]<int... z>(std::integer_sequence<int, z...>) __attribute__((always_inline)) {
          (V::store(image + 64 * z + offset, codes<z>(planes, offset)), ...);
        }
    (std::make_integer_sequence<int, 16>());
    for (int lane = 0; lane < kPanelRows; lane += V::kLanes) {
      Scales<V> s;
      scales(unit, j, lane, s);
      for (int h = 0; h < Kind::kSubs; ++h) {
        float* p = vectors + h * Kind::kVectors * kPanelRows + lane;
        V::store(p, s.scale[h]);
        V::store(p + kPanelRows, s.offset[h]);
        if constexpr (W::kMin) V::store(p + 2 * kPanelRows, s.min[h]);
      }
    }
  }
};

// t of R rows x G lane groups from integer sums. `vectors` is a sub-block's scales from the first lane on.
template <class V, class Kind, int R, int G>
[[gnu::always_inline]] inline void add_sub_block(const typename V::Ints (&sum)[R][G], const float* vectors,
                                                 const float* da, const float* sum_a,
                                                 typename V::Floats (&acc)[R][G]) {
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
    const float* p = vectors + g * V::kLanes;
    const auto scale = V::load_floats(p), offset = V::load_floats(p + kPanelRows);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      auto t = V::fma(V::as_floats(sum[r][g]), scale, offset);
      if constexpr (Kind::kMin)
        if (!mutated(Mutation::kMinDropped))
          t = V::fma(V::load_floats(p + 2 * kPanelRows), V::broadcast(sum_a + r), t);
      acc[r][g] = V::fma(t, V::broadcast(da + r), acc[r][g]);
    }
  }
}

// R rows x kTileGroups lane groups over a chunk: integer and float sums in registers, codes and scales from
// L1.
template <class V, class Kind, int R>
void chunk_rows(const Chunk& chunk, const ActivationRows& x, int row, int lane, float* acc) {
  constexpr int G = V::kTileGroups;
  using Floats = typename V::Floats;
  Floats out[R][G];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) out[r][g] = V::load_floats(acc + r * kPanelRows + g * V::kLanes);
  const std::byte* block = x.blocks;
  const std::byte* image = chunk.codes + lane / 16 * 512 + lane % 16 * 4;
  const float* vectors = chunk.scales + lane;
  for (int b = 0; b < chunk.n_blocks; ++b, block += x.stride, image += chunk.code_stride) {
    const ActivationBlock a(block, x.laid_out);
    const int8_t* codes = a.codes + row * kBlock;
#pragma GCC unroll 2
    for (int h = 0; h < Kind::kSubs; ++h, vectors += Kind::kVectors * kPanelRows) {
      const size_t half = Kind::kSubs == 2 ? size_t(h) * x.laid_out + row : row;
      const int32_t* start = (Kind::kSubs == 2 ? a.start_half : a.start) + half;
      typename V::Ints sum[R][G];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) sum[r][g] = V::template start<Kind>(start + r);
#pragma GCC unroll 8
      for (int j = h * Kind::kSteps; j < (h + 1) * Kind::kSteps; ++j) {
        typename V::Bytes w[G];
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const int at =
              g *
              V::kLanes;  // lane groups never straddle the two halves of the image unless they are 16 wide
          w[g] = V::load(image + at / 16 * 512 + at % 16 * 4 + 64 * j);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const auto four = V::broadcast4(codes + r * kBlock + 4 * j);
#pragma GCC unroll 8
          for (int g = 0; g < G; ++g) sum[r][g] = V::template dot<Kind>(sum[r][g], w[g], four);
        }
      }
      add_sub_block<V, Kind, R, G>(sum, vectors, a.scale + row,
                                   (Kind::kSubs == 2 ? a.sum_half : a.sum) + half, out);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) V::store(acc + r * kPanelRows + g * V::kLanes, out[r][g]);
}

// Calls f.operator()<r>() for the run-time r in 1 .. R.
template <int R, class F>
[[gnu::always_inline]] inline void with_rows(int r, const F& f) {
  if constexpr (R > 1) {
    if (r < R) return with_rows<R - 1>(r, f);
  }
  f.template operator()<R>();
}

// All rows over a chunk, in groups of kTileRows or one fewer, so that no group is small.
template <class V, class Kind>
void chunk_all_rows(const Chunk& chunk, const ActivationRows& x, int row_begin, int n_rows, float* acc) {
  const int n_groups = (n_rows + V::kTileRows - 1) / V::kTileRows;
  const int small = n_rows / n_groups, n_large = n_rows % n_groups;
  const int share = (chunk.ahead_lines + n_groups - 1) / n_groups;
  const std::byte* ahead = chunk.ahead;
  for (int group = 0, row = 0; group < n_groups; ++group) {
    const int n = small + (group < n_large);
    for (int line = 0; line < share; ++line, ahead += 64) V::prefetch_far(ahead);
    for (int lane = 0; lane < kPanelRows; lane += V::kTileGroups * V::kLanes)
      with_rows<V::kTileRows>(n, [&]<int R>() {
        chunk_rows<V, Kind, R>(chunk, x, row_begin + row, lane, acc + row * kPanelRows + lane);
      });
    row += n;
  }
}

template <class V, class W>
struct Int8Tile {
  using U = Unpack<V, W>;
  using Kind = typename U::Kind;
  static constexpr int kBlockShare = W::kUnitBytes / W::kUnitBlocks;  // bytes to stream a block

  // Many rows: a chunk is unpacked once and meets every row.
  static void many_rows(const std::byte* panel, const Activations& x, int row_begin, int n_rows, float* acc) {
    constexpr int kVectorFloats = Kind::kSubs * Kind::kVectors * kPanelRows;
    alignas(64) std::byte image[U::kDirect ? 64 : kChunkBlocks * kImageBytes];
    alignas(64) float vectors[kChunkBlocks * kVectorFloats];
    for (int i = 0; i < n_rows * kPanelRows; ++i) acc[i] = 0;
    const int n_blocks = int(x.n_in / kBlock);
    // With few row groups the stream is the bottleneck: smaller chunks spread its prefetch more evenly.
    const int step = n_rows <= 2 * V::kTileRows ? 4 : n_rows <= 5 * V::kTileRows ? 8 : kChunkBlocks;
    const size_t distance = step < kChunkBlocks ? 8192 : kChunkBlocks * kBlockShare;
    ActivationRows rows{x.packed, activation_stride(x.n_rows), x.n_rows};
    for (int b = 0; b < n_blocks; b += step, rows.blocks += step * rows.stride) {
      const int n = n_blocks - b < step ? n_blocks - b : step;
      for (int i = 0; i < n; ++i) {
        const std::byte* unit = panel + size_t((b + i) / W::kUnitBlocks) * W::kUnitBytes;
        U::block(unit, (b + i) % W::kUnitBlocks, image + i * kImageBytes, vectors + i * kVectorFloats);
      }
      const std::byte* first = panel + size_t(b) * kBlockShare;
      Chunk chunk{image, kImageBytes, vectors, n, first + distance, n * kBlockShare / 64};
      if constexpr (U::kDirect) chunk.codes = first + W::planes_offset(0), chunk.code_stride = W::kUnitBytes;
      chunk_all_rows<V, Kind>(chunk, rows, row_begin, n_rows, acc);
    }
  }

  // Few rows: weights go straight from the stream into dot products; all 32 outputs of R rows in registers.
  template <int R>
  static void few_rows(const std::byte* panel, const Activations& x, int row, float* acc) {
    constexpr int kAhead = 4096;  // bytes of prefetch: about the latency of DRAM at one core's rate
    constexpr int G = kPanelRows / V::kLanes;
    const size_t stride = activation_stride(x.n_rows);
    const int n_units = int(x.n_in / (kBlock * W::kUnitBlocks));
    const std::byte* act = x.packed;
    typename V::Floats out[R][G];
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < G; ++g) out[r][g] = V::zero();
    for (int u = 0; u < n_units; ++u, panel += W::kUnitBytes) {
      for (int j = 0; j < W::kUnitBlocks; ++j, act += stride) {
        for (int line = 0; line < kBlockShare; line += 64)
          V::prefetch(panel + j * kBlockShare + kAhead + line);
        few_rows_block<R, G>(panel, j, ActivationBlock(act, x.n_rows), x.n_rows, row, out);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int g = 0; g < G; ++g) V::store(acc + r * kPanelRows + g * V::kLanes, out[r][g]);
  }

  template <int R, int G>
  [[gnu::always_inline]] static void few_rows_block(const std::byte* unit, int j, const ActivationBlock& a,
                                                    int laid_out, int row, typename V::Floats (&out)[R][G]) {
    const std::byte* planes = unit + W::planes_offset(j);
    typename V::Ints sum[Kind::kSubs][R][G];
#pragma GCC unroll 2
    for (int h = 0; h < Kind::kSubs; ++h)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g)
          sum[h][r][g] = V::template start<Kind>(Kind::kSubs == 2 ? a.start_half + h * laid_out + row + r
                                                                  : a.start + row + r);
    [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      // i = step * G + lane group
      (few_rows_dot<R, G, i / G, i % G>(planes, a.codes + row * kBlock, sum[i / G / Kind::kSteps]), ...);
    }
    (std::make_integer_sequence<int, 8 * G>());
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      Scales<V> s;
      U::scales(unit, j, g * V::kLanes, s);
#pragma GCC unroll 2
      for (int h = 0; h < Kind::kSubs; ++h)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const float* sum_a = Kind::kSubs == 2 ? a.sum_half + h * laid_out + row + r : a.sum + row + r;
          auto t = V::fma(V::as_floats(sum[h][r][g]), s.scale[h], s.offset[h]);
          if constexpr (Kind::kMin)
            if (!mutated(Mutation::kMinDropped)) t = V::fma(s.min[h], V::broadcast(sum_a), t);
          out[r][g] = V::fma(t, V::broadcast(a.scale + row + r), out[r][g]);
        }
    }
  }

  template <int R, int G, int step, int g>
  [[gnu::always_inline]] static void few_rows_dot(const std::byte* planes, const int8_t* codes,
                                                  typename V::Ints (&sum)[R][G]) {
    constexpr int lane = g * V::kLanes;
    const auto w = U::template codes<lane / 16 * 8 + step>(planes, lane % 16 * 4);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      sum[r][g] = V::template dot<Kind>(sum[r][g], w, V::broadcast4(codes + r * kBlock + 4 * step));
  }

  static void run(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                  float* acc) {
    const size_t panel_bytes = size_t(w.n_in / (kBlock * W::kUnitBlocks)) * W::kUnitBytes;
    const std::byte* data = w.data.data() + size_t(panel) * panel_bytes;
    if constexpr (V::kFewRows > 0) {
      if (n_rows <= V::kFewRows)
        return with_rows<V::kFewRows>(n_rows, [&]<int R>() { few_rows<R>(data, x, row_begin, acc); });
    }
    many_rows(data, x, row_begin, n_rows, acc);
  }
};

}  // namespace kvasir::cpu::matmul
