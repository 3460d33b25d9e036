// Key and value producers of the head-wide types (tbq2_h, tbq3_h, tbq4_h). Query and output are in the
// rotated basis of formats/head_wide.h. Included by each ISA file, into an unnamed namespace.
//   levels: rounded to 8 bits of the largest, L8 = nearest(level / u), u = largest level / 127.
//   scores: the query is rounded to 8 bits with one scale a row, q8 = nearest(q / qs), qs = max|q| / 127:
//             s = k_scale * (qs * u) * sum_d q8[d] * L8[code[d]]     exact in int32, one key scale a score
//           |s - k_scale * sum_d q[d] * level[d]|
//             <= k_scale * (qs / 2 * sum_d |level[d]| + u / 2 * sum_d |q[d]| + head_dim * qs * u / 4)
//           The rotation leaves no outliers, so max|q| is about 3.5 rms(q) and the two roundings add noise of
//           0.8 % and 0.6 % (root mean square) to a code's own 10 % (4 bits) or more.
//   values: w_j = p_j * v_scale_j is rounded to 8 bits of the largest that the row sees among the same 128
//   keys
//           of the chunk:
//             w8 = nearest(254 w_j / m), m = max_j w_j        254: w8 - 127 is an int8, and so is its
//             negative out[d] += sum over both 128 of m / 254 * u * sum_j w8[j] * L8[code[j][d]]     exact in
//             int32
//           Each w_j is off by at most m / 508, each level by at most u / 2; m below 1e-30 adds nothing. The
//           error budget of the weights is in docs/kernels.md: with NMSE e of the type, noise of power
//           sum_j m^2 / (12 * 254^2) beside the type's own e * sum_j w_j^2; at most 128 / (774192 e) of it
//           (one key with nearly all the weight): 1.8 % of tbq4_h, 2.9 % of tbq4_ht, 2.0 % of tbq4_0, less of
//           fewer bits.
// Integer sums do not depend on their order and what scales them is a product, so scores and the sums of a
// chunk (two products and their sum) have the same bits on every ISA. Scales are not negative (the codecs
// write no others).
#pragma once
#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "backends/cpu/kernels/attention/producers_body.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

constexpr int kImage = 64;       // bytes of an image; see kv_page.h
constexpr int kBlockImages = 8;  // images of a block
constexpr int kBlockDims = 16;   // dimensions of a block

// kN lanes of the 8 images of a block, from lines of kBits-bit codes or (8) from levels already looked up.
template <typename Vec, int kBits>
struct ImageReader {
  using I = typename Vec::I;
  I line[kBits];

  explicit ImageReader(const std::byte* p) {
#pragma GCC unroll 8
    for (int l = 0; l < kBits; ++l) line[l] = Vec::iload(p + l * kImage);
  }

  // Codes in the low bits of their bytes; what lies above is left over.
  template <int z>
  [[gnu::always_inline]] I codes() const {
    constexpr CodeField field = code_field(kBits, z);
    I code = line[field.line];
    if constexpr (field.at > 0) code = Vec::template shift_right<field.at>(code);
    if constexpr (field.high_line >= 0) {
      const I high = Vec::template shift_right<field.high_at - field.bits>(line[field.high_line]);
      code = Vec::select_bits((1 << field.bits) - 1, code, high);
    }
    return code;
  }
  template <int z>
  [[gnu::always_inline]] I levels(const typename Vec::Table& table) const {
    return Vec::lookup(table, codes<z>());
  }
};

template <typename Vec>
struct ImageReader<Vec, 8> {
  const std::byte* images;
  explicit ImageReader(const std::byte* p) : images(p) {}
  template <int z>
  [[gnu::always_inline]] typename Vec::I levels(const typename Vec::Table&) const {
    return Vec::iload(images + z * kImage);
  }
};

// Calls f(integral constant) for 0 .. n - 1.
template <int n, typename F>
[[gnu::always_inline]] inline void static_for(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) [[gnu::always_inline]] {
    (f(std::integral_constant<int, i>{}), ...);
  }
  (std::make_integer_sequence<int, n>{});
}

inline int32_t load_word(const uint8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return word;
}

inline void prefetch_line(const Streams& streams, unsigned i) {
  __builtin_prefetch(streams.at[i % 4] + size_t(i / 4 * kImage), 0, 3);
}

// The share of block i in asking for half as many lines as blocks of `bits` lines have.
inline void prefetch_half(const Streams& streams, int i, int bits) {
  for (int line = i * bits / 2; line < (i + 1) * bits / 2; ++line) prefetch_line(streams, unsigned(line));
}

// The levels of a type by code; `fault`: with one of them off by 2 % of the largest.
inline HeadWideTable levels_of(int bits, int head_dim, Mutation fault) {
  HeadWideTable table = head_wide_table(bits, head_dim);
  if (mutated(fault)) table.rounded[1] += 2;
  return table;
}

// Looks up `n_blocks` blocks of codes once for several tiles.
template <typename Vec, int kBits>
void spread_blocks(const std::byte* codes, int n_blocks, const typename Vec::Table& table,
                   const Streams& next, unsigned line, std::byte* images) {
  for (int b = 0; b < n_blocks; ++b, codes += kBits * kImage, images += kBlockImages * kImage) {
    for (int l = 0; l < kBits; ++l) prefetch_line(next, line++);
    for (int at = 0; at < kImage; at += 4 * Vec::kN) {
      const ImageReader<Vec, kBits> reader(codes + at);
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        Vec::istore(images + z * kImage + at, reader.template levels<z>(table));
      });
    }
  }
}

// From this many tiles on, codes are looked up once for all of them; the values are the same.
constexpr int kSpreadTiles = 2;

// kBits 8: rows of kRowDims dimensions that image_body.h expands.
template <typename Vec, int kBits, int kRowDims = kMaxHeadDim>
struct HeadWideKeys {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr int n = Vec::kN;

  // Packed query: int8 codes of a row together (a line more than a row, so that rows share no cache set),
  // then of each row the scale and the start of its sums, which takes the levels' bias off.
  static constexpr int kStride = kRowDims + 64;
  struct Query {
    uint8_t* codes;
    float* scales;
    int32_t* starts;
    explicit Query(const std::byte* packed)
        : codes(reinterpret_cast<uint8_t*>(const_cast<std::byte*>(packed))),
          scales(reinterpret_cast<float*>(codes + size_t(kBlockRows) * kStride)),
          starts(reinterpret_cast<int32_t*>(scales + kBlockRows)) {}
  };
  static size_t query_bytes(int) { return size_t(kBlockRows) * (kStride + sizeof(float) + sizeof(int32_t)); }

  static void pack_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                         std::byte* packed) {
    pack_rows(q, tile, head_dim, scale * head_wide_table(kBits, head_dim).step, packed);
  }

  // `scale`: what a product of a rounded query and a level is worth.
  static void pack_rows(const float* const* q, const RowTile& tile, int head_dim, float scale,
                        std::byte* packed) {
    const Query query(packed);
    for (int i = 0; i < tile.n; ++i) {
      F top = Vec::zero(), poison = Vec::zero();  // poison: NaN when a value is not finite, else 0
      for (int d = 0; d < head_dim; d += n) {
        const F x = Vec::load(q[i] + d);
        top = Vec::max(top, Vec::abs(x));
        poison = Vec::add(poison, Vec::mul(x, Vec::zero()));
      }
      const float most = Vec::reduce_max(top);
      const F to_code = Vec::set1(most > 1e-30f ? 127.0f / most : 0.0f);
      uint8_t* codes = query.codes + size_t(tile.row + i) * kStride;
      I sum = Vec::izero();
      for (int d = 0; d < head_dim; d += n) {
        const I code = Vec::to_int(Vec::mul(Vec::load(q[i] + d), to_code));
        sum = Vec::iadd(sum, code);
        Vec::store_u8(codes + d, code);
      }
      query.scales[tile.row + i] = most / 127.0f * scale + Vec::reduce_add(poison);
      query.starts[tile.row + i] = int32_t(-uint32_t(Vec::kLevelBias) * uint32_t(Vec::reduce_iadd(sum)));
    }
  }

  struct Rows {
    const uint8_t* codes;
    const float* scales;
    const int32_t* starts;
    float* scores;
  };

  // What is read next: of lines of 64 bytes from `first` on, (i + 1) * rate / 2 by the end of block i of
  // dimensions.
  struct Ahead {
    Streams at;
    int rate;
    unsigned first = 0;
  };

  // 2n keys of a group: lanes `first` .. `first` + n - 1 of both halves of 16.
  template <int kRows, int kFrom, typename Scale>
  static void score_lanes(const std::byte* codes, const Scale* key_scales, const typename Vec::Table& table,
                          int head_dim, int first, const Rows& rows, const Ahead& next) {
    I acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::iset1(rows.starts[i]);
    const std::byte* p = codes + first * 4;
    const uint8_t* q = rows.codes;
    unsigned line = next.first, due = 0;
    for (int d = 0; d < head_dim; d += kBlockDims, p += kFrom * kImage, q += kBlockDims) {
      for (due += unsigned(next.rate); due > 1; due -= 2) prefetch_line(next.at, line++);
      const ImageReader<Vec, kFrom> reader(p);
      static_for<kBlockImages / 2>([&](auto j) [[gnu::always_inline]] {
        const I k0 = reader.template levels<2 * j>(table), k1 = reader.template levels<2 * j + 1>(table);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const I x = Vec::iset1(load_word(q + i * kStride + 4 * j));
          acc[i][0] = Vec::dot8(acc[i][0], k0, x);
          acc[i][1] = Vec::dot8(acc[i][1], k1, x);
        }
      });
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const F scale = Vec::load(key_scales + half * 16 + first);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const F s = Vec::mul(Vec::to_float(acc[i][half]), Vec::set1(rows.scales[i]));
        Vec::store(rows.scores + i * kChunk + half * 16 + first, Vec::mul(s, scale));
      }
    }
  }

  template <int kFrom, typename Scale>
  struct From {
    template <int kRows>
    struct Score {
      static void call(const std::byte* codes, const Scale* key_scales, const typename Vec::Table& table,
                       int head_dim, const Rows& rows, const Ahead& next) {
        for (int first = 0; first < 16; first += n)
          score_lanes<kRows, kFrom, Scale>(codes, key_scales, table, head_dim, first, rows, next);
      }
    };
  };

  template <int kFrom, typename Scale>
  static void score_tiles(const ScoreTask& task, const std::byte* codes, const Scale* scales,
                          const typename Vec::Table& table, int head_dim, Ahead next) {
    const Query query(task.query);
    for (int t = 0; t < task.n_tiles; ++t) {
      const int row = task.tiles[t].row;
      const Rows rows{query.codes + size_t(row) * kStride, query.scales + row, query.starts + row,
                      task.scores + row * kChunk};
      by_rows<From<kFrom, Scale>::template Score, Vec::kTileRows, const std::byte*, const Scale*,
              const typename Vec::Table&, int, const Rows&, const Ahead&>(task.tiles[t].n, codes, scales,
                                                                          table, head_dim, rows, next);
      next.rate = 0;  // only the first tile waits for memory
    }
  }

  static void score(const ScoreTask& task) {
    const int n_blocks = task.head_dim / kBlockDims;
    const size_t group_bytes = size_t(n_blocks) * kBits * kImage;
    const std::byte* codes = task.keys + size_t(task.group) * group_bytes;
    const auto table = Vec::load_table(levels_of(kBits, task.head_dim, Mutation::kLevelOff).rounded);
    const Streams next = after_keys(task, group_bytes);
    if (task.next)  // scales lie apart from the codes
      __builtin_prefetch(task.next + head_wide_scales(kBits, task.head_dim) + task.next_group * 64, 0, 2);
    const F16* scales = reinterpret_cast<const F16*>(task.keys + head_wide_scales(kBits, task.head_dim)) +
                        task.group * kGroupKeys + mutated(Mutation::kHeadKeyScale);
    if (task.n_tiles < kSpreadTiles)
      return score_tiles<kBits>(task, codes, scales, table, task.head_dim, Ahead{next, 2 * kBits});
    spread_blocks<Vec, kBits>(codes, n_blocks, table, next, 0, task.scratch);
    score_tiles<8>(task, task.scratch, scales, table, task.head_dim, Ahead{next, 0});
  }
};

// Panels of 16 dimensions of a register tile of values, so that one broadcast of weights serves two products
// where there are registers for it.
template <typename Vec>
constexpr int kMixPanels = Vec::kTileRows > 4 ? 2 : 1;

// Keys that share the unit of their weights: half a chunk, aligned by position.
constexpr int kWeightKeys = 128;
constexpr int kWeightSpans = kChunk / kWeightKeys;

template <typename Vec, int kBits>
struct HeadWideValues {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr int n = Vec::kN;
  static constexpr int kBlockTokens = 32;
  static constexpr int kPanels = kMixPanels<Vec>;
  static constexpr int kSliceBytes =
      4 * kBits * kImage;  // kSlice dimensions of a page: two panels of two blocks

  static constexpr int kStride = kChunk + 64;
  struct Scratch {
    float* units;       // [kBlockRows][kWeightSpans]: largest weight / 254 * step
    float* scales;      // [2][kChunk]: the second as ImageSource::value_scales says
    uint8_t* weights;   // [kBlockRows][kStride]: w8 - Vec::kWeightBias by column
    std::byte* images;  // [4 pages] slices of levels
    explicit Scratch(std::byte* p)
        : units(reinterpret_cast<float*>(p)),
          scales(units + size_t(kBlockRows) * kWeightSpans),
          weights(reinterpret_cast<uint8_t*>(scales + 2 * kChunk)),
          images(reinterpret_cast<std::byte*>(weights + size_t(kBlockRows) * kStride)) {}
  };

  // Whole blocks of tokens that a tile sees; tokens out of sight have weight zero.
  struct Piece {
    int page;  // index of the task's piece
    int block, n_blocks;
    int column;  // of the first block's first token
  };
  struct TilePieces {
    Piece pieces[4];
    int count;
  };

  static void clip_pieces(const MixTask& task, const RowTile& tile, TilePieces& out) {
    const int lo = tile.lo - task.chunk_begin, hi = tile.hi - task.chunk_begin;
    out.count = 0;
    for (int i = 0; i < task.n_pieces; ++i) {
      const ValuePiece& piece = task.pieces[i];
      const int skip = lo > piece.column ? lo - piece.column : 0;
      const int stop = hi < piece.column + piece.n ? hi - piece.column : piece.n;
      if (skip >= stop) continue;
      const int block = (piece.first + skip) / kBlockTokens;
      const int end = (piece.first + stop + kBlockTokens - 1) / kBlockTokens;
      out.pieces[out.count++] = {i, block, end - block, piece.column - piece.first + block * kBlockTokens};
    }
  }

  static void load_scales(const MixTask& task, float* wide) {
    for (int i = 0; i < task.n_pieces; ++i) {
      const ValuePiece& piece = task.pieces[i];
      const F16* scales = reinterpret_cast<const F16*>(piece.values + head_wide_scales(kBits, task.head_dim));
      for (int t = 0; t < kPage; t += n)
        Vec::store(wide + piece.column - piece.first + t,
                   Vec::load(scales + t + mutated(Mutation::kHeadValueScale)));
    }
  }

  // Calls f(column, weight * scale) for the columns of pieces [first, end) of a tile, n at a time; zero where
  // the row or the piece sees nothing.
  template <typename Fn>
  [[gnu::always_inline]] static void walk_weights(const MixTask& task, const TilePieces& tile, int first,
                                                  int end, int row, const float* scales, const Fn& f) {
    const int row_lo = task.lo[row] - task.chunk_begin, row_hi = task.hi[row] - task.chunk_begin;
    const float* weights = task.weights + row * kChunk;
    const auto weight = [&](int column) [[gnu::always_inline]] {
      return Vec::mul(Vec::load(weights + column), Vec::load(scales + column));
    };
    for (int i = first; i < end; ++i) {
      const ValuePiece& piece = task.pieces[tile.pieces[i].page];
      const int lo = row_lo > piece.column ? row_lo : piece.column;
      const int hi = row_hi < piece.column + piece.n ? row_hi : piece.column + piece.n;
      const int begin = tile.pieces[i].column, stop = begin + tile.pieces[i].n_blocks * kBlockTokens;
      if (lo <= begin && stop <= hi) {
        for (int column = begin; column < stop; column += n) f(column, weight(column));
        continue;
      }
      for (int column = begin; column < stop; column += n)
        f(column, Vec::keep(weight(column), lo - column, hi - column, Vec::zero()));
    }
  }

  static void round_weights(const MixTask& task, const TilePieces& tile, int row, float step,
                            const Scratch& scratch) {
    uint8_t* codes = scratch.weights + size_t(row) * kStride;
    float* units = scratch.units + size_t(row) * kWeightSpans;
    for (int first = 0, end; first < tile.count; first = end) {
      const int span = tile.pieces[first].column / kWeightKeys;
      for (end = first + 1; end < tile.count && tile.pieces[end].column / kWeightKeys == span;) ++end;
      F most = Vec::zero();
      walk_weights(task, tile, first, end, row, scratch.scales, [&](int, F w) { most = Vec::max(most, w); });
      const float top = Vec::reduce_max(most);
      const bool any = top > 1e-30f;
      const F to_code = Vec::set1(any ? 254.0f / top : 0.0f);
      units[span] = any ? top / 254.0f * step : 0.0f;
      if (mutated(Mutation::kWeightUnit) && span > 0) units[span] = units[0];
      walk_weights(task, tile, first, end, row, scratch.scales, [&](int column, F w) {
        I code = Vec::to_int(Vec::mul(w, to_code));
        if (mutated(Mutation::kWeightBit)) code = Vec::bit_and(code, Vec::iset1(127));
        Vec::store_u8(codes + column, Vec::iadd(code, Vec::iset1(-Vec::kWeightBias)));
      });
    }
  }

  // Levels (or codes) of a slice by page.
  struct Slice {
    const std::byte* pages[4];
    const TilePieces* tile;
  };
  struct Rows {
    const uint8_t* weights;
    const float *units, *keep, *blend;
    float* out;
    int out_stride;
  };

  template <int kRows>
  struct Sums {
    I row[kRows][kPanels];
    I levels[kPanels];  // of kWeightBias for every weight, where they are biased
  };

  // Adds a block of tokens.
  template <int kRows, int kFrom>
  [[gnu::always_inline]] static void add_block(const std::byte* p, const uint8_t* w,
                                               const typename Vec::Table& table, Sums<kRows>& sums) {
    const ImageReader<Vec, kFrom> first(p), second(p + (kPanels > 1 ? kFrom * kImage : 0));
    static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
      I v[kPanels];
      v[0] = first.template levels<z>(table);
      if constexpr (kPanels > 1) v[1] = second.template levels<z>(table);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const I word = Vec::iset1(load_word(w + i * kStride + 4 * z));
#pragma GCC unroll 2
        for (int panel = 0; panel < kPanels; ++panel)
          sums.row[i][panel] = Vec::dot_weights(sums.row[i][panel], v[panel], word);
      }
      if constexpr (Vec::kWeightBias != 0)
        for (int panel = 0; panel < kPanels; ++panel)
          sums.levels[panel] =
              Vec::dot_weights(sums.levels[panel], v[panel], Vec::iset1(0x01010101 * Vec::kWeightBias));
    });
  }

  // What the sums of a span stand for, beside what `held` has of the span before: to `held`, or, of the last
  // span, to the output. A chunk is one sum before it meets the others.
  template <int kRows>
  [[gnu::always_inline]] static void add_sums(const Sums<kRows>& sums, const Rows& rows, int span, bool last,
                                              float* out, float (*held)[kPanels][n]) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < kPanels; ++j) {
        I sum = sums.row[i][j];
        if constexpr (Vec::kWeightBias != 0) sum = Vec::iadd(sum, sums.levels[j]);
        const F own = Vec::mul(Vec::to_float(sum), Vec::set1(rows.units[i * kWeightSpans + span]));
        const F part = Vec::add(own, Vec::load(held[i][j]));
        if (!last) {
          Vec::store(held[i][j], part);
          continue;
        }
        float* o = out + size_t(i) * rows.out_stride + j * kBlockDims;
        const F old = Vec::mul(Vec::load(o), Vec::set1(rows.keep[i]));
        Vec::store(o, Vec::fma(part, Vec::set1(rows.blend[i]), old));  // as `merged` of the flash body
      }
  }

  // Panels from `panel` on, lanes from `first` on.
  template <int kRows, int kFrom>
  static void mix_lanes(const Slice& slice, const typename Vec::Table& table, int panel, int first,
                        const Rows& rows, const Streams& next) {
    alignas(64) float held[kRows][kPanels][n] = {};
    unsigned line = unsigned(panel) * (4 * kSliceBytes / kImage / 2);
    const TilePieces& tile = *slice.tile;
    for (int i = 0; i < tile.count;) {
      const int span = tile.pieces[i].column / kWeightKeys;
      Sums<kRows> sums;
#pragma GCC unroll 2
      for (int j = 0; j < kPanels; ++j) {
        sums.levels[j] = Vec::izero();
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) sums.row[row][j] = Vec::izero();
      }
      for (; i < tile.count && tile.pieces[i].column / kWeightKeys == span; ++i) {
        const Piece& at = tile.pieces[i];
        const std::byte* p = slice.pages[at.page] + (at.block * 2 + panel) * kFrom * kImage + first * 4;
        const uint8_t* w = rows.weights + at.column;
        for (int b = 0; b < at.n_blocks; ++b, p += 2 * kFrom * kImage, w += kBlockTokens) {
          if constexpr (kFrom != 8) {
#pragma GCC unroll 8
            for (int l = 0; l < kPanels * kFrom; ++l) prefetch_line(next, line++);
          }
          add_block<kRows, kFrom>(p, w, table, sums);
        }
      }
      add_sums<kRows>(sums, rows, span, i == tile.count, rows.out + panel * kBlockDims + first, held);
    }
  }

  template <int kFrom>
  struct From {
    template <int kRows>
    struct Mix {
      static void call(const Slice& slice, const typename Vec::Table& table, const Rows& rows,
                       const Streams& next) {
        for (int panel = 0; panel < 2; panel += kPanels)
          for (int first = 0; first < kBlockDims; first += n)
            mix_lanes<kRows, kFrom>(slice, table, panel, first, rows, next);
      }
    };
  };

  // What is asked for during slice d: the slice after the next of each page, or the next chunk's keys. (The
  // first two come with the last keys.)
  static Streams after_slice(const MixTask& task, int d) {
    if (d + kSlice >= task.head_dim && task.next_keys)
      return split(task.next_keys, size_t(task.head_dim) * kGroupKeys / 8 * kBits);
    Streams s;
    for (int i = 0; i < 4; ++i)
      s.at[i] = reinterpret_cast<const char*>(task.pieces[i < task.n_pieces ? i : 0].values) +
                size_t(d / kSlice + 2) * kSliceBytes;
    return s;
  }

  // A share of the next chunk's first page of keys with every slice: scoring waits for memory, mixing does
  // not.
  static void prefetch_keys(const MixTask& task, int d, int bytes = kSliceBytes) {
    if (!task.next_keys) return;
    const char* keys = reinterpret_cast<const char*>(task.next_keys) + size_t(d / kSlice) * size_t(bytes);
    for (int at = 0; at < bytes; at += kImage) __builtin_prefetch(keys + at, 0, 2);
  }

  template <int kFrom>
  static void mix_tiles(const MixTask& task, const TilePieces* tiles, int d, const Scratch& scratch,
                        Slice slice, const typename Vec::Table& table, Streams next) {
    for (int t = 0; t < task.n_tiles; ++t) {
      if (tiles[t].count == 0) continue;
      slice.tile = tiles + t;
      const int row = task.tiles[t].row;
      const Rows rows{scratch.weights + size_t(row) * kStride,
                      scratch.units + size_t(row) * kWeightSpans,
                      task.keep + row,
                      task.blend + row,
                      task.out + size_t(row) * task.head_dim + d,
                      task.head_dim};
      by_rows<From<kFrom>::template Mix, Vec::kTileRows, const Slice&, const typename Vec::Table&,
              const Rows&, const Streams&>(task.tiles[t].n, slice, table, rows, next);
      next = still(slice.pages[0]);
    }
  }

  // What every slice of a task takes: the pieces and the rounded weights of each tile.
  static void prepare(const MixTask& task, float step, const Scratch& scratch, TilePieces* tiles) {
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      clip_pieces(task, tile, tiles[t]);
      for (int row = tile.row; row < tile.row + tile.n && tiles[t].count; ++row)
        round_weights(task, tiles[t], row, step, scratch);
    }
  }

  static void mix(const MixTask& task) {
    const Scratch scratch(task.scratch);
    const HeadWideTable constants = levels_of(kBits, task.head_dim, Mutation::kValueLevelOff);
    const auto table = Vec::load_signed_table(constants.rounded);
    load_scales(task, scratch.scales);
    TilePieces tiles[kBlockRows];
    prepare(task, constants.step, scratch, tiles);
    for (int d = 0; d < task.head_dim; d += kSlice) {
      const Streams next = after_slice(task, d);
      prefetch_keys(task, d);
      Slice slice{};
      for (int i = 0; i < task.n_pieces; ++i)
        slice.pages[i] = task.pieces[i].values + size_t(d / kSlice) * kSliceBytes;
      if (task.n_tiles < kSpreadTiles) {
        mix_tiles<kBits>(task, tiles, d, scratch, slice, table, next);
        continue;
      }
      for (int i = 0; i < task.n_pieces; ++i) {
        std::byte* images = scratch.images + size_t(i) * 4 * kBlockImages * kImage;
        spread_blocks<Vec, kBits>(slice.pages[i], 4, table, next, unsigned(i) * 4 * kBits, images);
        slice.pages[i] = images;
      }
      mix_tiles<8>(task, tiles, d, scratch, slice, table, still(scratch.images));
    }
  }
};

template <typename Vec, int kBits>
constexpr KeyProducer head_wide_keys(DType type) {
  using P = HeadWideKeys<Vec, kBits>;
  return {type, P::query_bytes, P::pack_query, P::score};
}

template <typename Vec, int kBits>
constexpr ValueProducer head_wide_values(DType type) {
  return {type, HeadWideValues<Vec, kBits>::mix};
}

}  // namespace
}  // namespace kvasir::cpu
