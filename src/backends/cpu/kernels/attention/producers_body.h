// Key and value producers of the types whose elements are read as they lie (f32, f16, bf16): the conversion
// is part of the load. Included by each ISA file, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/simd/half_types.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

constexpr int kPage = graph::kPageTokens;
constexpr int kSlice = 32;  // dimensions a value slice holds

// Query rows apart by a constant, so that a tile addresses all of them from one register; the odd line keeps
// rows out of each other's cache sets.
constexpr int kQueryStride = kMaxHeadDim + 16;

inline size_t float_query_bytes(int) { return sizeof(float) * size_t(kBlockRows) * kQueryStride; }

template <typename Vec>
void pack_float_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                      std::byte* packed) {
  float* out = reinterpret_cast<float*>(packed) + size_t(tile.row) * kQueryStride;
  for (int i = 0; i < tile.n; ++i, out += kQueryStride)
    for (int d = 0; d < head_dim; d += Vec::kN)
      Vec::store(out + d, Vec::mul(Vec::load(q[i] + d), Vec::set1(scale)));
}

inline Streams split(const void* bytes, size_t size) {
  const char* p = static_cast<const char*>(bytes);
  return {{p, p + size / 4, p + size / 2, p + size / 4 * 3}};
}

inline Streams still(const void* bytes) { return split(bytes, 0); }

// Step i of a walk that reads `line` bytes a step.
inline void prefetch(const Streams& streams, int i, int line) {
  __builtin_prefetch(streams.at[i % 4] + size_t(i / 4) * size_t(line), 0, 2);
}

inline Streams after_keys(const ScoreTask& task, size_t group_bytes) {
  if (task.next) return split(task.next + (task.next_group ? group_bytes : 0), group_bytes);
  Streams s;
  for (int i = 0; i < 4; ++i) s.at[i] = reinterpret_cast<const char*>(task.values[i]);
  return s;
}

// After slice d of the values: the next slice of each page, or the next chunk's keys.
inline Streams after_values(const MixTask& task, int d, size_t slice_bytes, size_t group_bytes) {
  if (d + kSlice >= task.head_dim)
    return task.next_keys ? split(task.next_keys, group_bytes) : still(task.pieces[0].values);
  Streams s;
  for (int i = 0; i < 4; ++i)
    s.at[i] = reinterpret_cast<const char*>(task.pieces[i < task.n_pieces ? i : 0].values) +
              size_t(d / kSlice + 1) * slice_bytes;
  return s;
}

// Scores of kRows rows and 32 keys ([head_dim][32]): one chain of fused multiply-adds over the dimensions a
// score.
template <typename Vec, typename T, int kRows>
void score_tile(const T* keys, const float* query, int head_dim, Streams next, float* scores) {
  constexpr int n = Vec::kN;
  for (int first = 0; first < kGroupKeys; first += 2 * n) {
    typename Vec::F acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::zero();
    const T* k = keys + first;
    const float* q = query;
    for (int d = 0; d < head_dim - 4 * mutated(Mutation::kDimensionLost); d += 4) {
#pragma GCC unroll 4
      for (int step = 0; step < 4; ++step, k += kGroupKeys, ++q) {
        prefetch(next, d + step, kGroupKeys * sizeof(T));
        const auto k0 = Vec::load(k), k1 = Vec::load(k + n);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const auto x = Vec::set1(q[i * kQueryStride]);
          acc[i][0] = Vec::fma(x, k0, acc[i][0]);
          acc[i][1] = Vec::fma(x, k1, acc[i][1]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      Vec::store(scores + i * kChunk + first, acc[i][0]);
      Vec::store(scores + i * kChunk + first + n, acc[i][1]);
    }
  }
}

// One slice of values of up to four pages.
template <typename T>
struct SlicePiece {
  const T* values;  // [n][32]
  int n, column;
};

// What a mix does with the rows of a tile.
struct MixRows {
  const float* weights;  // [rows][kChunk]
  const float *keep, *blend;
  float* out;
  int out_stride;
};

// out = out * keep + blend * sum over keys of weight * value, for kRows rows and 32 dimensions; keys in
// rising order.
template <typename Vec, typename T, int kRows>
void mix_tile(const SlicePiece<T>* pieces, int n_pieces, const MixRows& rows, Streams next) {
  constexpr int n = Vec::kN;
  for (int first = 0; first < kSlice; first += 2 * n) {
    typename Vec::F acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::zero();
    for (int piece = 0; piece < n_pieces; ++piece) {
      const T* v = pieces[piece].values + first;
      const int column = pieces[piece].column;
      const float* w = rows.weights + column;
      for (int j = mutated(Mutation::kValueLost) && pieces[piece].n > 1; j < pieces[piece].n;
           ++j, v += kSlice, ++w) {
        prefetch(next, column + j, kSlice * sizeof(T));
        const auto v0 = Vec::load(v), v1 = Vec::load(v + n);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const auto x = Vec::set1(w[i * kChunk]);
          acc[i][0] = Vec::fma(x, v0, acc[i][0]);
          acc[i][1] = Vec::fma(x, v1, acc[i][1]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      float* o = rows.out + size_t(i) * rows.out_stride + first;
      const auto a = Vec::set1(rows.keep[i]), b = Vec::set1(rows.blend[i]);
      Vec::store(o, Vec::fma(acc[i][0], b, Vec::mul(Vec::load(o), a)));
      Vec::store(o + n, Vec::fma(acc[i][1], b, Vec::mul(Vec::load(o + n), a)));
    }
  }
}

// Function of a tile of n rows, 1 <= n <= kMax, by a table: f<n>(args...).
template <template <int> class Fn, int kMax, typename... Args>
inline void by_rows(int n, Args... args) {
  static_assert(kMax == 4 || kMax == 6 || kMax == 8);
  switch (n) {
    case 1:
      return Fn<1>::call(args...);
    case 2:
      return Fn<2>::call(args...);
    case 3:
      return Fn<3>::call(args...);
    case 4:
      return Fn<4>::call(args...);
    case 5:
      if constexpr (kMax >= 5) return Fn<5>::call(args...);
      break;
    case 6:
      if constexpr (kMax >= 6) return Fn<6>::call(args...);
      break;
    case 7:
      if constexpr (kMax >= 7) return Fn<7>::call(args...);
      break;
    case 8:
      if constexpr (kMax >= 8) return Fn<8>::call(args...);
      break;
  }
}

// From this many tiles on, 16-bit elements are widened once for all of them; the values are the same.
constexpr int kWidenTiles = 3;

template <typename Vec, typename T>
struct PlainProducer {
  template <typename U>
  struct Of {
    template <int kRows>
    struct Score {
      static void call(const U* keys, const float* q, int head_dim, const Streams& next, float* scores) {
        score_tile<Vec, U, kRows>(keys, q, head_dim, next, scores);
      }
    };
    template <int kRows>
    struct Mix {
      static void call(const SlicePiece<U>* pieces, int n_pieces, const MixRows& rows, const Streams& next) {
        mix_tile<Vec, U, kRows>(pieces, n_pieces, rows, next);
      }
    };
  };

  static size_t group_bytes(int head_dim) { return sizeof(T) * size_t(kGroupKeys) * head_dim; }

  static void widen(const T* from, int count, const Streams& next, float* to) {
    constexpr int n = Vec::kN;
    for (int line = 0; line < count / 32; ++line, from += 32, to += 32) {
      prefetch(next, line, 32 * sizeof(T));
#pragma GCC unroll 8
      for (int i = 0; i < 32; i += n) Vec::store(to + i, Vec::load(from + i));
    }
  }

  template <typename U>
  static void score_tiles(const ScoreTask& task, const U* keys, Streams next) {
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const float* q = reinterpret_cast<const float*>(task.query) + size_t(tile.row) * kQueryStride;
      by_rows<Of<U>::template Score, Vec::kTileRows>(tile.n, keys, q, task.head_dim, next,
                                                     task.scores + tile.row * kChunk);
      next = still(keys);  // only the first tile waits for memory
    }
  }

  static void score(const ScoreTask& task) {
    const T* keys = reinterpret_cast<const T*>(task.keys) + size_t(task.group) * kGroupKeys * task.head_dim;
    const Streams next = after_keys(task, group_bytes(task.head_dim));
    if (sizeof(T) == sizeof(float) || task.n_tiles < kWidenTiles) return score_tiles(task, keys, next);
    float* wide = reinterpret_cast<float*>(task.scratch);
    widen(keys, kGroupKeys * task.head_dim, next, wide);
    score_tiles(task, static_cast<const float*>(wide), still(wide));
  }

  // Tiles over one slice; `at` gives the address of key `key` of piece i.
  template <typename U, typename At>
  static void mix_tiles(const MixTask& task, int d, Streams next, const At& at) {
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const int lo = tile.lo - task.chunk_begin, hi = tile.hi - task.chunk_begin;
      SlicePiece<U> pieces[4];
      int n = 0;
      for (int i = 0; i < task.n_pieces; ++i) {
        const ValuePiece& piece = task.pieces[i];
        const int skip = lo > piece.column ? lo - piece.column : 0;
        const int stop = hi < piece.column + piece.n ? hi - piece.column : piece.n;
        if (skip < stop) pieces[n++] = {at(i, piece.first + skip), stop - skip, piece.column + skip};
      }
      if (n == 0) continue;
      const MixRows rows{task.weights + tile.row * kChunk, task.keep + tile.row, task.blend + tile.row,
                         task.out + size_t(tile.row) * task.head_dim + d, task.head_dim};
      by_rows<Of<U>::template Mix, Vec::kTileRows>(tile.n, static_cast<const SlicePiece<U>*>(pieces), n, rows,
                                                   next);
      next = still(pieces[0].values);
    }
  }

  static void mix(const MixTask& task) {
    const bool widened = sizeof(T) != sizeof(float) && task.n_tiles >= kWidenTiles;
    float* wide = reinterpret_cast<float*>(task.scratch);  // [4 pages][64][32]
    for (int d = 0; d < task.head_dim; d += kSlice) {
      const Streams next = after_values(task, d, sizeof(T) * kPage * kSlice, group_bytes(task.head_dim));
      const auto narrow_at = [&](int i, int key) {
        return reinterpret_cast<const T*>(task.pieces[i].values) + size_t(d) * kPage + size_t(key) * kSlice;
      };
      if (!widened) {
        mix_tiles<T>(task, d, next, narrow_at);
        continue;
      }
      const auto wide_at = [&](int i, int key) { return wide + (size_t(i) * kPage + size_t(key)) * kSlice; };
      for (int i = 0; i < task.n_pieces; ++i) {
        const int first = task.pieces[i].first;
        widen(narrow_at(i, first), task.pieces[i].n * kSlice, still(wide), wide_at(i, first));
      }
      mix_tiles<float>(task, d, next, wide_at);
    }
  }
};

template <typename Vec, typename T>
constexpr KeyProducer plain_keys(DType type) {
  return {type, float_query_bytes, pack_float_query<Vec>, PlainProducer<Vec, T>::score};
}

template <typename Vec, typename T>
constexpr ValueProducer plain_values(DType type) {
  return {type, PlainProducer<Vec, T>::mix};
}

}  // namespace
}  // namespace kvasir::cpu
