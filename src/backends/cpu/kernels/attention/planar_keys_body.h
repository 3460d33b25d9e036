// Keys of the published types (tbq3_0 tbq4_0 q4_polar, and qjl1_256 as its signs): blocks of dimensions with
// one scale a key. As head-wide types (headwide_body.h), but a block's exact sum meets its scale at once:
//   s = (qs * step) * sum over blocks b of k_scale[b] * sum_d q8[d] * L8[code[d]]
// by a fused multiply-add a block in rising order, so that the bits are the same on every ISA. Levels are
// rounded to 8 bits of the largest, step = unit * L / 127; of signs they are not. Included by the image file
// of each ISA, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/planar_image_body.h"

namespace kvasir::cpu {
namespace {

template <typename Vec, DType type>
struct PlanarKeys {
  using F = typename Vec::F;
  using I = typename Vec::I;
  using Images = PlanarImages<Vec, type>;
  using Scale = typename Images::Scale;
  static constexpr PlanarForm kForm = planar_form(type);
  static constexpr int n = Vec::kN, kBits = kForm.bits;
  static constexpr int kMaxDims = kMaxHeadDim * kForm.dims / kForm.values;
  static constexpr int kMaxBlocks = kMaxHeadDim / kForm.values;
  using Codes = HeadWideKeys<Vec, 8, kMaxDims>;  // packs and holds the queries' codes and scales

  // After those, the starts of each row's blocks.
  static int32_t* starts_of(std::byte* packed, int row) {
    return reinterpret_cast<int32_t*>(packed + Codes::query_bytes(0)) + size_t(row) * kMaxBlocks;
  }
  static size_t query_bytes(int) {
    return Codes::query_bytes(0) + sizeof(int32_t) * size_t(kBlockRows) * kMaxBlocks;
  }

  static void pack_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                         std::byte* packed) {
    alignas(64) float wide[kForm.dims == kForm.values ? 1 : Vec::kTileRows * kMaxImageDims];
    const float* rows[Vec::kTileRows];
    for (int i = 0; i < tile.n; ++i) rows[i] = q[i];
    if constexpr (kForm.dims != kForm.values) {
      Images::query(q, tile.n, head_dim, wide);
      for (int i = 0; i < tile.n; ++i) rows[i] = wide + i * kMaxImageDims;
    }
    const int n_blocks = kForm.n_blocks(head_dim);
    Codes::pack_rows(rows, tile, n_blocks * kForm.dims, scale * Images::kLevels.step, packed);
    const typename Codes::Query query(packed);
    for (int row = tile.row; row < tile.row + tile.n; ++row)
      for (int b = 0; b < n_blocks; ++b) {
        const uint8_t* codes = query.codes + size_t(row) * Codes::kStride + b * kForm.dims;
        int32_t sum = 0;
        for (int d = 0; d < kForm.dims; ++d) sum += int8_t(codes[d]);
        starts_of(packed, row)[b] = -int32_t(Vec::kLevelBias) * sum;
      }
  }

  static typename Vec::Table table() {
    alignas(16) int8_t levels[16];
    for (int i = 0; i < 16; ++i) levels[i] = Images::kLevels.byte[i];
    if (mutated(Mutation::kBlockLevel)) levels[2] = int8_t(levels[2] + 3);
    return Vec::load_table(levels);
  }

  struct Rows {
    const uint8_t* codes;
    const int32_t* starts;
    const float* scales;
    float* scores;
  };
  struct Ahead {
    Streams at;
    bool on;
  };

  // A block of dimensions, keys `first` .. `first` + n - 1 of both halves of 16.
  template <int kRows, int kFrom>
  static void score_block(const std::byte* codes, const Scale* key_scales, const typename Vec::Table& table,
                          int b, int first, const Rows& rows, const Ahead& next) {
    constexpr int kImages = kForm.dims / kBlockDims;
    I acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::iset1(rows.starts[i * kMaxBlocks + b]);
    const std::byte* p = codes + (size_t(b) * kImages * kFrom) * kImage + first * 4;
    const uint8_t* q = rows.codes + b * kForm.dims;
    for (int block = 0; block < kImages; ++block, p += kFrom * kImage, q += kBlockDims) {
      for (int l = 0; l < kBits && next.on; ++l)
        prefetch_line(next.at, unsigned((b * kImages + block) * kBits + l));
      const ImageReader<Vec, kFrom> reader(p);
      static_for<kBlockImages / 2>([&](auto j) [[gnu::always_inline]] {
        const I k0 = reader.template levels<2 * j>(table), k1 = reader.template levels<2 * j + 1>(table);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const I x = Vec::iset1(load_word(q + i * Codes::kStride + 4 * j));
          acc[i][0] = Vec::dot8(acc[i][0], k0, x);
          acc[i][1] = Vec::dot8(acc[i][1], k1, x);
        }
      });
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const F scale = Vec::load(key_scales + b * kGroupKeys + half * 16 + first);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        float* s = rows.scores + i * kChunk + half * 16 + first;
        const F old = b == 0 ? Vec::zero() : Vec::load(s);
        Vec::store(s, Vec::fused(Vec::to_float(acc[i][half]), scale, old));
      }
    }
  }

  template <int kFrom>
  struct From {
    template <int kRows>
    struct Score {
      static void call(const std::byte* codes, const Scale* key_scales, const typename Vec::Table& table,
                       int n_blocks, const Rows& rows, Ahead& next) {
        for (int b = 0; b < n_blocks; ++b) {
          for (int first = 0; first < 16; first += n) {
            score_block<kRows, kFrom>(codes, key_scales, table, b, first, rows, next);
          }
        }
        for (int i = 0; i < kRows; ++i)
          for (int key = 0; key < kGroupKeys; key += n) {
            float* s = rows.scores + i * kChunk + key;
            Vec::store(s, Vec::mul(Vec::load(s), Vec::set1(rows.scales[i])));
          }
      }
    };
  };

  template <int kFrom>
  static void score_tiles(const ScoreTask& task, const std::byte* codes, const Scale* scales,
                          const typename Vec::Table& table, Ahead next) {
    const typename Codes::Query query(task.query);
    std::byte* packed = const_cast<std::byte*>(task.query);
    for (int t = 0; t < task.n_tiles; ++t) {
      const int row = task.tiles[t].row;
      const Rows rows{query.codes + size_t(row) * Codes::kStride, starts_of(packed, row), query.scales + row,
                      task.scores + row * kChunk};
      by_rows<From<kFrom>::template Score, Vec::kTileRows, const std::byte*, const Scale*,
              const typename Vec::Table&, int, const Rows&, Ahead&>(
          task.tiles[t].n, codes, scales, table, kForm.n_blocks(task.head_dim), rows, next);
      next.on = false;  // only the first tile waits for memory
    }
  }

  static void score(const ScoreTask& task) {
    const int n_images = kForm.n_blocks(task.head_dim) * kForm.dims / kBlockDims;
    const size_t group_bytes = size_t(n_images) * kBits * kImage;
    const Streams next = after_keys(task, group_bytes);
    if (task.next && task.next_group == 0)  // scales lie behind the codes of both groups
      for (size_t at = 0; at < size_t(kForm.n_blocks(task.head_dim)) * 128; at += kImage)
        __builtin_prefetch(task.next + 2 * group_bytes + at, 0, 2);
    const std::byte* codes = task.keys + size_t(task.group) * group_bytes;
    const Scale* scales = reinterpret_cast<const Scale*>(
                              task.keys + kForm.key_scale(task.head_dim, 0, task.group * kGroupKeys)) +
                          mutated(Mutation::kBlockScale);
    const auto levels = table();
    if (task.n_tiles < kSpreadTiles)
      return score_tiles<kBits>(task, codes, scales, levels, Ahead{next, true});
    spread_blocks<Vec, kBits>(codes, n_images, levels, next, 0, task.scratch);
    score_tiles<8>(task, task.scratch, scales, levels, Ahead{next, false});
  }

  static constexpr KeyProducer kProducer{type, query_bytes, pack_query, score};
};

}  // namespace
}  // namespace kvasir::cpu
