// Key and value producers of the 32-value block types (q8_0, q5_0, q4_0). Included by each ISA file, into an
// unnamed namespace.
//   scores: the query is rounded to 16 bits with one scale a row, so that a block's products sum exactly in
//   int32:
//           s = qs * sum over blocks b of k_scale[b] * sum_d q16[d] * code[d]      |q - qs * q16| <= max|q| /
//           65534
//   values: out[d] = sum_j (p_j * v_scale[j][b]) * code[j][d], in f32, keys in rising order
#pragma once
#include "backends/cpu/kernels/attention/kv_page.h"
#include "backends/cpu/kernels/attention/producers_body.h"

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

  // Packed query: int16 pairs [head_dim / 2][tile.n] a tile, then the scale of each row.
  static size_t query_bytes(int head_dim) {
    return size_t(kBlockRows) * (head_dim * sizeof(int16_t) + sizeof(float));
  }
  static int16_t* codes_of(std::byte* packed, int head_dim, int row) {
    return reinterpret_cast<int16_t*>(packed) + size_t(row) * head_dim;
  }
  static float* scales_of(std::byte* packed, int head_dim) {
    return reinterpret_cast<float*>(packed + size_t(kBlockRows) * head_dim * sizeof(int16_t));
  }

  static void pack_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                         std::byte* packed) {
    int16_t* out = codes_of(packed, head_dim, tile.row);
    for (int i = 0; i < tile.n; ++i) {
      float most = 0;
      for (int d = 0; d < head_dim; ++d) {
        const float x = q[i][d] < 0 ? -q[i][d] : q[i][d];
        most = x > most ? x : most;
      }
      const float to_code = most > 0 ? 32767.0f / most : 0.0f;
      scales_of(packed, head_dim)[tile.row + i] = most / 32767.0f * scale;
      for (int d = 0; d < head_dim; ++d) {
        const float x = q[i][d] * to_code;
        out[(d / 2 * tile.n + i) * 2 + d % 2] = int16_t(x + (x < 0 ? -0.5f : 0.5f));
      }
    }
  }

  // Codes of one pair of dimensions of n keys as 16-bit halves; `part` 1 takes the high nibbles, `pair`
  // counts in the block.
  static I unpack_keys(I bytes, int part, int pair, const std::byte* high) {
    if constexpr (!kNibbles) return bytes;
    I x = Vec::bit_and(part ? Vec::shift_right32(bytes, 4) : bytes, Vec::iset1(0x000f000f));
    if constexpr (kForm.high != 0) {
      const I h = Vec::shift_right32(Vec::iload(high), 2 * pair);
      x = Vec::bit_or(x, Vec::template shift_left32<4>(Vec::bit_and(h, Vec::iset1(1))));
      x = Vec::bit_or(x, Vec::template shift_left32<19>(Vec::bit_and(h, Vec::iset1(2))));
    }
    return Vec::sub16(x, Vec::iset1(Codes::kOffset * 0x00010001));
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
                          const int32_t* query, bool first_block, const char* prefetch, float* scores) {
    I acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::izero();
    for (int c = 0; c < kForm.codes / 2; ++c, codes += 64) {
      __builtin_prefetch(prefetch + c * 64, 0, 2);
      const I bytes[2] = {load_keys(codes), load_keys(codes + 2 * n)};
#pragma GCC unroll 2
      for (int part = 0; part < (kNibbles ? 2 : 1); ++part) {
        const int pair = c + 8 * part;
        const I k0 = unpack_keys(bytes[0], part, pair, high),
                k1 = unpack_keys(bytes[1], part, pair, high + 4 * n);
        const int32_t* q = query + pair * kRows;
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const I x = Vec::iset1(q[i]);
          acc[i][0] = Vec::dot16(acc[i][0], x, k0);
          acc[i][1] = Vec::dot16(acc[i][1], x, k1);
        }
      }
    }
    const F s0 = Vec::load(reinterpret_cast<const F16*>(scales)),
            s1 = Vec::load(reinterpret_cast<const F16*>(scales) + n);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* s = scores + i * kChunk;
      const F old0 = first_block ? Vec::zero() : Vec::load(s),
              old1 = first_block ? Vec::zero() : Vec::load(s + n);
      Vec::store(s, Vec::fma(Vec::to_float(acc[i][0]), s0, old0));
      Vec::store(s + n, Vec::fma(Vec::to_float(acc[i][1]), s1, old1));
    }
  }

  template <int kRows>
  struct Score {
    static void call(const ScoreTask& task, const int32_t* query, const float* row_scales,
                     const char* prefetch, float* scores) {
      const int n_blocks = task.head_dim / 32;
      const size_t first_slot = size_t(task.group) * n_blocks * 32;
      for (int b = 0; b < n_blocks; ++b)
        for (int key = 0; key < kGroupKeys; key += 2 * n) {
          const size_t slot = first_slot + size_t(b) * 32;
          score_block<kRows>(task.keys + slot * kForm.codes + key * 2,
                             task.keys + kForm.high_plane(task.head_dim) + (slot + key) * 4,
                             task.keys + kForm.scale_plane(task.head_dim) + (slot + key) * 2,
                             query + b * 16 * kRows, b == 0, prefetch + size_t(b) * 32 * kForm.codes,
                             scores + key);
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
    const char* prefetch =
        reinterpret_cast<const char*>(task.next) + (task.next_group == 1 ? group_codes : 0);
    std::byte* packed = const_cast<std::byte*>(task.query);
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const int32_t* q = reinterpret_cast<const int32_t*>(codes_of(packed, task.head_dim, tile.row));
      by_rows<Score, Vec::kTileRows>(tile.n, task, q,
                                     static_cast<const float*>(scales_of(packed, task.head_dim) + tile.row),
                                     prefetch, task.scores + tile.row * kChunk);
      prefetch = reinterpret_cast<const char*>(task.keys + task.group * group_codes);
    }
  }

  // Values [dim, dim + n) of one key's block, without scale.
  static F unpack_values(const std::byte* codes, const std::byte* high, int dim) {
    if constexpr (!kNibbles) return Vec::to_float(Vec::load_s8_wide32(codes + dim));
    I x = Vec::load_u8_wide32(codes + dim % 16);
    x = Vec::bit_and(dim < 16 ? x : Vec::shift_right32(x, 4), Vec::iset1(15));
    if constexpr (kForm.high != 0) {
      int32_t bits;
      __builtin_memcpy(&bits, high, sizeof(bits));
      const I h = Vec::bit_and(Vec::shift_right_lanes(Vec::iset1(bits), dim), Vec::iset1(1));
      x = Vec::bit_or(x, Vec::template shift_left32<4>(h));
    }
    return Vec::to_float(Vec::sub32(x, Vec::iset1(Codes::kOffset)));
  }

  struct Piece {
    const std::byte *codes, *high;  // of the slice's first key
    int n, column;
  };

  template <int kRows>
  struct Mix {
    static void call(const Piece* pieces, int n_pieces, const float* weights, const float* keep,
                     const float* blend, size_t prefetch, float* out, int stride) {
      for (int first = 0; first < kSlice; first += 2 * n) {
        F acc[kRows][2];
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::zero();
        for (int piece = 0; piece < n_pieces; ++piece) {
          const std::byte *codes = pieces[piece].codes, *high = pieces[piece].high;
          const float* w = weights + pieces[piece].column;
          for (int j = 0; j < pieces[piece].n; ++j, codes += kForm.codes, high += 4, ++w) {
            __builtin_prefetch(codes + prefetch, 0, 2);
            const F v0 = unpack_values(codes, high, first), v1 = unpack_values(codes, high, first + n);
#pragma GCC unroll 16
            for (int i = 0; i < kRows; ++i) {
              const F x = Vec::set1(w[i * kChunk]);
              acc[i][0] = Vec::fma(x, v0, acc[i][0]);
              acc[i][1] = Vec::fma(x, v1, acc[i][1]);
            }
          }
        }
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          float* o = out + size_t(i) * stride + first;
          const F a = Vec::set1(keep[i]), b = Vec::set1(blend[i]);
          Vec::store(o, Vec::fma(acc[i][0], b, Vec::mul(Vec::load(o), a)));
          Vec::store(o + n, Vec::fma(acc[i][1], b, Vec::mul(Vec::load(o + n), a)));
        }
      }
    }
  };

  // Scales of block b of the chunk's visible keys, by column.
  static void load_scales(const MixTask& task, int b, float* scales) {
    for (int p = 0; p < task.n_pieces; ++p) {
      const ValuePiece& piece = task.pieces[p];
      const F16* s =
          reinterpret_cast<const F16*>(piece.values + kForm.scale_plane(task.head_dim)) + size_t(b) * kPage;
      const int page_column = piece.column - piece.first;
      for (int t = piece.first / n * n; t < piece.first + piece.n; t += n)
        Vec::store(scales + page_column + t, Vec::load(s + t));
    }
  }

  static void mix(const MixTask& task) {
    float* scales = reinterpret_cast<float*>(task.scratch);
    float* weights = scales + kChunk;  // of one tile, times the scales of one block
    for (int b = 0; b < task.head_dim / 32; ++b) {
      load_scales(task, b, scales);
      size_t prefetch = (b + 1) * 32 < task.head_dim ? size_t(kPage) * kForm.codes : 0;
      for (int t = 0; t < task.n_tiles; ++t) {
        const RowTile& tile = task.tiles[t];
        Piece pieces[4];
        const int count = clip_pieces(task, tile, b, pieces);
        if (count == 0) continue;
        const int begin = pieces[0].column / n * n, end = pieces[count - 1].column + pieces[count - 1].n;
        for (int i = 0; i < tile.n; ++i)
          for (int j = begin; j < end; j += n)
            Vec::store(
                weights + i * kChunk + j,
                Vec::mul(Vec::load(task.weights + (tile.row + i) * kChunk + j), Vec::load(scales + j)));
        by_rows<Mix, Vec::kTileRows>(tile.n, static_cast<const Piece*>(pieces), count,
                                     static_cast<const float*>(weights), task.keep + tile.row,
                                     task.blend + tile.row, prefetch,
                                     task.out + size_t(tile.row) * task.head_dim + b * 32, task.head_dim);
        prefetch = 0;
      }
    }
  }

  static int clip_pieces(const MixTask& task, const RowTile& tile, int b, Piece* pieces) {
    const int lo = tile.lo - task.chunk_begin, hi = tile.hi - task.chunk_begin;
    int count = 0;
    for (int i = 0; i < task.n_pieces; ++i) {
      const ValuePiece& piece = task.pieces[i];
      const int skip = lo > piece.column ? lo - piece.column : 0;
      const int stop = hi < piece.column + piece.n ? hi - piece.column : piece.n;
      if (skip >= stop) continue;
      const size_t slot = size_t(b) * kPage + piece.first + skip;
      pieces[count++] = {piece.values + slot * kForm.codes,
                         piece.values + kForm.high_plane(task.head_dim) + slot * kForm.high, stop - skip,
                         piece.column + skip};
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
