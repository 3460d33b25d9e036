// Key and value producers of the 32-value block types (q8_0, q5_0, q4_0). Included by each ISA file, into an
// unnamed namespace.
//   scores: the query is rounded to 16 bits with one scale a row, so that a block's products sum exactly in
//   int32:
//           s = qs * sum over blocks b of k_scale[b] * sum_d q16[d] * code[d]      |q - qs * q16| <= max|q| /
//           65534
//   values: p and the scales are rounded to 16 bits too, so that a chunk sums exactly in int32:
//           p16 = nearest(32767 p), s16 = nearest(32767 scale / m), m = max |scale| of the block over the
//           keys the row sees in the chunk; out[d] += m * 2^15 / 32767^2 * sum_j mul_round15(p16, s16)[j] *
//           code[j][d] each key's weight is off by at most 1.5 * 2^-15 of the largest p times m
#pragma once
#include "backends/cpu/kernels/attention/kv_page.h"
#include "backends/cpu/kernels/attention/producers_body.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// How the codes of a type become numbers: value = scale * (code - kOffset).
struct Q8Codes {
  static constexpr BlockForm kForm = kQ8Form;
  static constexpr int kOffset = 0;
};
struct Q5Codes {
  static constexpr BlockForm kForm = kQ5Form;
  static constexpr int kOffset = 16;
};
struct Q4Codes {
  static constexpr BlockForm kForm = kQ4Form;
  static constexpr int kOffset = 8;
};

template <typename Vec, typename Codes>
struct BlockProducer {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr BlockForm kForm = Codes::kForm;
  static constexpr int n = Vec::kN;
  static constexpr bool kNibbles = kForm.codes == 16;

  // Packed query: int16 codes of a row together, then the scale of each row.
  static constexpr int kCodeStride = kMaxHeadDim + 32;
  static size_t query_bytes(int) {
    return size_t(kBlockRows) * (kCodeStride * sizeof(int16_t) + sizeof(float));
  }
  static int16_t* codes_of(std::byte* packed, int row) {
    return reinterpret_cast<int16_t*>(packed) + size_t(row) * kCodeStride;
  }
  static float* scales_of(std::byte* packed) {
    return reinterpret_cast<float*>(packed + size_t(kBlockRows) * kCodeStride * sizeof(int16_t));
  }

  static void pack_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                         std::byte* packed) {
    for (int i = 0; i < tile.n; ++i) {
      F top = Vec::zero(), poison = Vec::zero();  // poison: NaN when a value is not finite, else 0
      for (int d = 0; d < head_dim; d += n) {
        const F x = Vec::load(q[i] + d);
        top = Vec::max(top, Vec::abs(x));
        poison = Vec::fma(x, Vec::zero(), poison);
      }
      const float most = Vec::reduce_max(top);
      const F to_code = Vec::set1(most > 1e-30f ? 32767.0f / most : 0.0f);
      scales_of(packed)[tile.row + i] = most / 32767.0f * scale + Vec::reduce_add(poison);
      int16_t* codes = codes_of(packed, tile.row + i);
      for (int d = 0; d < head_dim; d += n) Vec::store_s16(codes + d, Vec::mul(Vec::load(q[i] + d), to_code));
    }
  }

  // Codes of one pair of dimensions of n keys as 16-bit halves; `part` 1 takes the high nibbles, `pair`
  // counts in the block.
  static I unpack_keys(I bytes, int part, int pair, const std::byte* high) {
    if constexpr (!kNibbles) return bytes;
    if (mutated(Mutation::kNibbleOrder)) part = 1 - part;
    if (mutated(Mutation::kHighBit)) pair ^= 1;
    I x = Vec::bit_and(part ? Vec::shift_right32(bytes, 4) : bytes, Vec::iset1(0x000f000f));
    if constexpr (kForm.high != 0) {
      const I h = Vec::shift_right32(Vec::iload(high), 2 * pair);
      x = Vec::bit_or(x, Vec::template shift_left32<4>(Vec::bit_and(h, Vec::iset1(1))));
      x = Vec::bit_or(x, Vec::template shift_left32<19>(Vec::bit_and(h, Vec::iset1(2))));
    }
    return Vec::sub16(x, Vec::iset1(Codes::kOffset * 0x00010001));
  }

  static int32_t load_pair(const int16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return pair;
  }

  static I load_keys(const std::byte* p) {
    if constexpr (kNibbles)
      return Vec::load_u8_wide16(p);
    else
      return Vec::load_s8_wide16(p);
  }

  // Adds one block of dimensions to the scores of kRows rows and 2n keys.
  template <int kRows>
  static void score_block(const std::byte* codes, const std::byte* high, const std::byte* scales,
                          const int16_t* query, bool first_block, const Streams& next, int line,
                          float* scores) {
    typename Vec::Dot acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::dot_zero();
    for (int c = 0; c < kForm.codes / 2; ++c, codes += 64) {
      prefetch(next, line + c, 64);
      const I bytes[2] = {load_keys(codes), load_keys(codes + 2 * n)};
#pragma GCC unroll 2
      for (int part = 0; part < (kNibbles ? 2 : 1); ++part) {
        const int pair = c + 8 * part;
        const I k0 = unpack_keys(bytes[0], part, pair, high),
                k1 = unpack_keys(bytes[1], part, pair, high + 4 * n);
        const int16_t* q = query + pair * 2;
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const I x = Vec::iset1(load_pair(q + i * kCodeStride));
          acc[i][0] = Vec::dot16(acc[i][0], x, k0);
          acc[i][1] = Vec::dot16(acc[i][1], x, k1);
        }
      }
    }
    if (mutated(Mutation::kKeyScale)) scales += 2;
    const F s0 = Vec::load(reinterpret_cast<const F16*>(scales)),
            s1 = Vec::load(reinterpret_cast<const F16*>(scales) + n);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* s = scores + i * kChunk;
      const F old0 = first_block ? Vec::zero() : Vec::load(s),
              old1 = first_block ? Vec::zero() : Vec::load(s + n);
      Vec::store(s, Vec::fma(Vec::to_float(Vec::dot_sum(acc[i][0])), s0, old0));
      Vec::store(s + n, Vec::fma(Vec::to_float(Vec::dot_sum(acc[i][1])), s1, old1));
    }
  }

  template <int kRows>
  struct Score {
    static void call(const ScoreTask& task, const int16_t* query, const float* row_scales,
                     const Streams& next, float* scores) {
      const int n_blocks = task.head_dim / 32;
      const size_t first_slot = size_t(task.group) * n_blocks * 32;
      for (int b = 0; b < n_blocks; ++b)
        for (int key = 0; key < kGroupKeys; key += 2 * n) {
          const size_t slot = first_slot + size_t(b) * 32;
          score_block<kRows>(task.keys + slot * kForm.codes + key * 2,
                             task.keys + kForm.high_plane(task.head_dim) + (slot + key) * 4,
                             task.keys + kForm.scale_plane(task.head_dim) + (slot + key) * 2, query + b * 32,
                             b == 0, next, b * kForm.codes / 2, scores + key);
        }
      for (int i = 0; i < kRows; ++i)
        for (int key = 0; key < kGroupKeys; key += n) {
          float* s = scores + i * kChunk + key;
          Vec::store(s, Vec::mul(Vec::load(s), Vec::set1(row_scales[i])));
        }
    }
  };

  static void score(const ScoreTask& task) {
    const size_t group_codes = size_t(kGroupKeys) * (task.head_dim / 32) * kForm.codes;
    Streams next = after_keys(task, group_codes);
    std::byte* packed = const_cast<std::byte*>(task.query);
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const int16_t* q = codes_of(packed, tile.row);
      by_rows<Score, Vec::kTileRows>(tile.n, task, q, static_cast<const float*>(scales_of(packed) + tile.row),
                                     next, task.scores + tile.row * kChunk);
      next = still(task.keys + task.group * group_codes);
    }
  }

  // Codes of dimensions [dim, dim + n) of a pair of keys as 16-bit halves.
  static I load_values(const std::byte* codes, const std::byte* high, int dim) {
    if constexpr (!kNibbles) return Vec::load_s8_wide16(codes + dim * 2);
    I x = Vec::load_u8_wide16(codes + dim % 16 * 2);
    x = Vec::bit_and((dim < 16) != mutated(Mutation::kValueNibbles) ? x : Vec::shift_right32(x, 4),
                     Vec::iset1(0x000f000f));
    if constexpr (kForm.high != 0) {
      int32_t bits[2];
      __builtin_memcpy(bits, high, sizeof(bits));
      const I one = Vec::iset1(1);
      const I h0 = Vec::bit_and(Vec::shift_right_lanes(Vec::iset1(bits[0]), dim), one);
      const I h1 = Vec::bit_and(Vec::shift_right_lanes(Vec::iset1(bits[1]), dim), one);
      x = Vec::bit_or(x, Vec::bit_or(Vec::template shift_left32<4>(h0), Vec::template shift_left32<20>(h1)));
    }
    return Vec::sub16(x, Vec::iset1(Codes::kOffset * 0x00010001));
  }

  struct Piece {
    const std::byte *codes, *high;  // of the slice's first pair of keys
    int n_pairs, column;            // column of that pair's first key
  };

  template <int kRows>
  struct Mix {
    static void call(const Piece* pieces, int n_pieces, const int16_t* weights, const float* unit,
                     const MixRows& rows, const Streams& next) {
      for (int first = 0; first < kSlice; first += 2 * n) {
        typename Vec::Dot acc[kRows][2];
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::dot_zero();
        for (int piece = 0; piece < n_pieces; ++piece) {
          const std::byte *codes = pieces[piece].codes, *high = pieces[piece].high;
          const int16_t* w = weights + pieces[piece].column;
          for (int j = 0; j < pieces[piece].n_pairs; ++j, codes += 2 * kForm.codes, high += 8, w += 2) {
            prefetch(next, pieces[piece].column / 2 + j, 2 * kForm.codes);
            const I v0 = load_values(codes, high, first), v1 = load_values(codes, high, first + n);
#pragma GCC unroll 16
            for (int i = 0; i < kRows; ++i) {
              const I x = Vec::iset1(load_pair(w + i * kChunk));
              acc[i][0] = Vec::dot16(acc[i][0], x, v0);
              acc[i][1] = Vec::dot16(acc[i][1], x, v1);
            }
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i)
          for (int half = 0; half < 2; ++half) {
            float* o = rows.out + size_t(i) * rows.out_stride + first + half * n;
            F sum = Vec::mul(Vec::to_float(Vec::dot_sum(acc[i][half])), Vec::set1(unit[i]));
            if (mutated(Mutation::kOneCode) && first + half == 0)
              sum = Vec::keep(sum, 1, n, Vec::sub(Vec::zero(), sum));
            const F old = Vec::mul(Vec::load(o), Vec::set1(rows.keep[i]));
            Vec::store(o, Vec::fma(sum, Vec::set1(rows.blend[i]), old));
          }
      }
    }
  };

  // Scales of block b by column, zero outside [lo, hi), in 16 bits of the largest; returns the largest
  // magnitude.
  static float load_scales(const MixTask& task, int b, int lo, int hi, float* wide, int16_t* narrow) {
    F most = Vec::zero();
    for (int p = 0; p < task.n_pieces; ++p) {
      const ValuePiece& piece = task.pieces[p];
      const F16* s =
          reinterpret_cast<const F16*>(piece.values + kForm.scale_plane(task.head_dim)) + size_t(b) * kPage;
      const int page_column = piece.column - piece.first;
      for (int t = piece.first / n * n; t < piece.first + piece.n; t += n) {
        const int column = page_column + t;
        const F x = Vec::keep(Vec::load(s + t + mutated(Mutation::kValueScale)), lo - column, hi - column,
                              Vec::zero());
        Vec::store(wide + column, x);
        most = Vec::max(most, Vec::abs(x));
      }
    }
    const float top = Vec::reduce_max(most);
    const F to_code = Vec::set1(top > 0 ? 32767.0f / top : 0.0f);
    for (int p = 0; p < task.n_pieces; ++p) {
      const ValuePiece& piece = task.pieces[p];
      const int begin = piece.column / n * n;
      for (int j = begin; j < piece.column + piece.n; j += n)
        Vec::store_s16(narrow + j, Vec::mul(Vec::load(wide + j), to_code));
    }
    return top;
  }

  static int clip(int position, const MixTask& task) {
    const int column = position - task.chunk_begin;
    return column < 0 ? 0 : column > kChunk ? kChunk : column;
  }

  struct MixScratch {
    float* scales;
    int16_t *narrow_scales, *weights, *p16;
    explicit MixScratch(std::byte* bytes)
        : scales(reinterpret_cast<float*>(bytes)),
          narrow_scales(reinterpret_cast<int16_t*>(scales + kChunk)),
          weights(narrow_scales + kChunk),
          p16(weights + Vec::kTileRows * kChunk) {}
  };

  static void mix(const MixTask& task) {
    const MixScratch scratch(task.scratch);
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const int begin = clip(tile.lo, task) / n * n, end = clip(tile.hi, task);
      for (int row = tile.row; row < tile.row + tile.n; ++row)
        for (int j = begin; j < end; j += n)
          Vec::store_s16(scratch.p16 + row * kChunk + j,
                         Vec::mul(Vec::load(task.weights + row * kChunk + j), Vec::set1(32767.0f)));
    }
    for (int b = 0; b < task.head_dim / 32; ++b) mix_block(task, b, scratch);
  }

  static void mix_block(const MixTask& task, int b, const MixScratch& scratch) {
    Streams next = after_values(task, b * 32, size_t(kPage) * kForm.codes,
                                size_t(kGroupKeys) * (task.head_dim / 32) * kForm.codes);
    int lo = -1, hi = -1;  // of the scales at hand
    float top = 0;
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      Piece pieces[4];
      const int count = clip_pieces(task, tile, b, pieces);
      if (count == 0) continue;
      const int begin = clip(tile.lo, task) / (2 * n) * (2 * n), end = clip(tile.hi, task);
      float unit[Vec::kTileRows];
      for (int i = 0; i < tile.n; ++i) {
        const int row = tile.row + i;
        const int row_lo = clip(task.lo[row], task), row_hi = clip(task.hi[row], task);
        if (row_lo != lo || row_hi != hi) {
          lo = row_lo, hi = row_hi;
          top = load_scales(task, b, lo, hi, scratch.scales, scratch.narrow_scales);
        }
        unit[i] = top * (32768.0f / (32767.0f * 32767.0f));
        for (int j = begin; j < end; j += 2 * n)
          Vec::istore(scratch.weights + i * kChunk + j,
                      Vec::mul_round15(Vec::iload(scratch.p16 + row * kChunk + j),
                                       Vec::iload(scratch.narrow_scales + j)));
      }
      const MixRows rows{nullptr, task.keep + tile.row, task.blend + tile.row,
                         task.out + size_t(tile.row) * task.head_dim + b * 32, task.head_dim};
      by_rows<Mix, Vec::kTileRows>(tile.n, static_cast<const Piece*>(pieces), count,
                                   static_cast<const int16_t*>(scratch.weights),
                                   static_cast<const float*>(unit), rows, next);
      next = still(pieces[0].codes);
    }
  }

  // Whole pairs of keys: the partner of a pair that is out of sight has weight zero.
  static int clip_pieces(const MixTask& task, const RowTile& tile, int b, Piece* pieces) {
    const int lo = tile.lo - task.chunk_begin, hi = tile.hi - task.chunk_begin;
    int count = 0;
    for (int i = 0; i < task.n_pieces; ++i) {
      const ValuePiece& piece = task.pieces[i];
      const int skip = lo > piece.column ? lo - piece.column : 0;
      const int stop = hi < piece.column + piece.n ? hi - piece.column : piece.n;
      if (skip >= stop) continue;
      const int first = (piece.first + skip) / 2 * 2, end = piece.first + stop;
      const size_t slot = size_t(b) * kPage + first;
      pieces[count++] = {piece.values + slot * kForm.codes,
                         piece.values + kForm.high_plane(task.head_dim) + slot * kForm.high,
                         (end - first + 1) / 2, piece.column - piece.first + first};
    }
    return count;
  }
};

template <typename Vec, typename Codes>
constexpr KeyProducer block_keys(DType type) {
  using P = BlockProducer<Vec, Codes>;
  return {type, P::query_bytes, P::pack_query, P::score};
}

template <typename Vec, typename Codes>
constexpr ValueProducer block_values(DType type) {
  return {type, BlockProducer<Vec, Codes>::mix};
}

}  // namespace
}  // namespace kvasir::cpu
