// Key and value producers of the types whose elements are read as they lie (f32, f16, bf16): the conversion
// is part of the load. Included by each ISA file, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/simd/half_types.h"

namespace kvasir::cpu {
namespace {

constexpr int kPage = graph::kPageTokens;
constexpr int kSlice = 32;  // dimensions a value slice holds

// Query rows of a tile interleaved by dimension, [head_dim][tile.n], in order of tiles.
inline size_t float_query_bytes(int head_dim) { return sizeof(float) * size_t(kBlockRows) * head_dim; }

inline void pack_float_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                             std::byte* packed) {
  float* out = reinterpret_cast<float*>(packed) + size_t(tile.row) * head_dim;
  for (int i = 0; i < tile.n; ++i)
    for (int d = 0; d < head_dim; ++d) out[d * tile.n + i] = q[i][d] * scale;
}

// Scores of kRows rows and 32 keys ([head_dim][32]): one chain of fused multiply-adds over the dimensions a
// score.
template <typename Vec, typename T, int kRows>
void score_tile(const T* keys, const float* query, int head_dim, const char* prefetch, float* scores) {
  constexpr int n = Vec::kN;
  for (int first = 0; first < kGroupKeys; first += 2 * n) {
    typename Vec::F acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::zero();
    const T* k = keys + first;
    const float* q = query;
    for (int d = 0; d < head_dim; ++d, k += kGroupKeys, q += kRows) {
      __builtin_prefetch(prefetch + size_t(d) * kGroupKeys * sizeof(T), 0, 2);
      const auto k0 = Vec::load(k), k1 = Vec::load(k + n);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const auto x = Vec::set1(q[i]);
        acc[i][0] = Vec::fma(x, k0, acc[i][0]);
        acc[i][1] = Vec::fma(x, k1, acc[i][1]);
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

// out = out * keep + blend * sum over keys of weight * value, for kRows rows and 32 dimensions; keys in
// rising order.
template <typename Vec, typename T, int kRows>
void mix_tile(const SlicePiece<T>* pieces, int n_pieces, const float* weights, const float* keep,
              const float* blend, size_t prefetch, float* out, int out_stride) {
  constexpr int n = Vec::kN;
  for (int first = 0; first < kSlice; first += 2 * n) {
    typename Vec::F acc[kRows][2];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) acc[i][0] = acc[i][1] = Vec::zero();
    for (int piece = 0; piece < n_pieces; ++piece) {
      const T* v = pieces[piece].values + first;
      const float* w = weights + pieces[piece].column;
      for (int j = 0; j < pieces[piece].n; ++j, v += kSlice, ++w) {
        __builtin_prefetch(reinterpret_cast<const char*>(v) + prefetch, 0, 2);
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
      float* o = out + size_t(i) * out_stride + first;
      const auto a = Vec::set1(keep[i]), b = Vec::set1(blend[i]);
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

template <typename Vec, typename T>
struct PlainProducer {
  template <int kRows>
  struct Score {
    static void call(const T* keys, const float* q, int head_dim, const char* prefetch, float* scores) {
      score_tile<Vec, T, kRows>(keys, q, head_dim, prefetch, scores);
    }
  };
  template <int kRows>
  struct Mix {
    static void call(const SlicePiece<T>* pieces, int n_pieces, const float* weights, const float* keep,
                     const float* blend, size_t prefetch, float* out, int stride) {
      mix_tile<Vec, T, kRows>(pieces, n_pieces, weights, keep, blend, prefetch, out, stride);
    }
  };

  static void score(const ScoreTask& task) {
    const T* keys = reinterpret_cast<const T*>(task.keys) + size_t(task.group) * kGroupKeys * task.head_dim;
    const size_t group_bytes = sizeof(T) * size_t(kGroupKeys) * task.head_dim;
    const char* prefetch =
        reinterpret_cast<const char*>(task.next) + (task.next_group == 1 ? group_bytes : 0);
    for (int t = 0; t < task.n_tiles; ++t) {
      const RowTile& tile = task.tiles[t];
      const float* q = reinterpret_cast<const float*>(task.query) + size_t(tile.row) * task.head_dim;
      by_rows<Score, Vec::kTileRows>(tile.n, keys, q, task.head_dim, prefetch,
                                     task.scores + tile.row * kChunk);
      prefetch = reinterpret_cast<const char*>(keys);  // only the first tile waits for memory
    }
  }

  static void mix(const MixTask& task) {
    for (int d = 0; d < task.head_dim; d += kSlice) {
      size_t prefetch = d + kSlice < task.head_dim ? size_t(kPage) * kSlice * sizeof(T) : 0;
      for (int t = 0; t < task.n_tiles; ++t) {
        const RowTile& tile = task.tiles[t];
        const int lo = tile.lo - task.chunk_begin, hi = tile.hi - task.chunk_begin;
        SlicePiece<T> pieces[4];
        int n = 0;
        for (int i = 0; i < task.n_pieces; ++i) {
          const ValuePiece& piece = task.pieces[i];
          const int skip = lo > piece.column ? lo - piece.column : 0;
          const int stop = hi < piece.column + piece.n ? hi - piece.column : piece.n;
          if (skip >= stop) continue;
          const T* slice = reinterpret_cast<const T*>(piece.values) + size_t(d) * kPage;
          pieces[n++] = {slice + (piece.first + skip) * kSlice, stop - skip, piece.column + skip};
        }
        if (n == 0) continue;
        by_rows<Mix, Vec::kTileRows>(tile.n, static_cast<const SlicePiece<T>*>(pieces), n,
                                     task.weights + tile.row * kChunk, task.keep + tile.row,
                                     task.blend + tile.row, prefetch,
                                     task.out + size_t(tile.row) * task.head_dim + d, task.head_dim);
        prefetch = 0;
      }
    }
  }
};

template <typename Vec, typename T>
constexpr KeyProducer plain_keys(DType type) {
  return {type, float_query_bytes, pack_float_query, PlainProducer<Vec, T>::score};
}

template <typename Vec, typename T>
constexpr ValueProducer plain_values(DType type) {
  return {type, PlainProducer<Vec, T>::mix};
}

}  // namespace
}  // namespace kvasir::cpu
