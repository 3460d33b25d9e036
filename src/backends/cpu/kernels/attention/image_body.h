// Key and value producers of the types that are expanded into images first (image_source.h). What follows is
// the scoring and the mixing of headwide_body.h with a step of 1, and so are its bounds. Included by the
// image file of each ISA, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/image_source.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/planar_encode_body.h"
#include "backends/cpu/kernels/attention/planar_image_body.h"
#include "backends/cpu/kernels/attention/planar_keys_body.h"

namespace kvasir::cpu {
namespace {

// Source::get() is the ImageSource.
template <typename Vec, typename Source>
struct ImageKeys {
  using Keys = HeadWideKeys<Vec, 8>;

  static void pack_query(const float* const* q, const RowTile& tile, int head_dim, float scale,
                         std::byte* packed) {
    Keys::pack_rows(q, tile, head_dim, scale, packed);
    const typename Keys::Query query(packed);
    for (int row = tile.row; row < tile.row + tile.n && Source::get().striped; ++row)
      stripe_codes(query.codes + size_t(row) * Keys::kStride, head_dim);
  }

  // Codes of a row from four runs to steps of four, 64 at once.
  static void stripe_codes(uint8_t* codes, int head_dim) {
    typedef uint8_t Bytes __attribute__((vector_size(16)));
    typedef uint16_t Pairs __attribute__((vector_size(16)));
    const int run = head_dim / 4;
    uint8_t runs[kMaxHeadDim];
    __builtin_memcpy(runs, codes, size_t(head_dim));
    for (int step = 0; step < run; step += 16) {
      Bytes x[4];
      for (int i = 0; i < 4; ++i) __builtin_memcpy(&x[i], runs + i * run + step, sizeof(Bytes));
      for (int half = 0; half < 2; ++half) {
        const auto pairs = [&](const Bytes& a, const Bytes& b) {
          return Pairs(
              half ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                             31)
                   : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
        };
        const Pairs low = pairs(x[0], x[1]), high = pairs(x[2], x[3]);
        const Pairs out[2] = {__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11),
                              __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15)};
        __builtin_memcpy(codes + step * 4 + half * 32, out, sizeof(out));
      }
    }
  }

  static void score(const ScoreTask& task) {
    const ImageSource& source = Source::get();
    float* scales = reinterpret_cast<float*>(task.scratch);
    std::byte* images = task.scratch + sizeof(float) * kGroupKeys;
    const size_t group_bytes = size_t(task.head_dim / kBlockDims * source.bits) * kImage;
    if (task.next && task.next_group == 0)  // scales lie behind the codes of both groups
      for (size_t at = 0; at < size_t(task.head_dim) * 4; at += kImage)
        __builtin_prefetch(task.next + 2 * group_bytes + at, 0, 2);
    const Streams next = after_keys(task, group_bytes);
    source.keys(task.keys, task.group, task.head_dim, Vec::kLevelBias, images, scales, task.tcq, next);
    static constexpr int8_t kNone[16] = {};
    Keys::template score_tiles<8>(
        task, images, scales, Vec::load_table(kNone), task.head_dim,
        typename Keys::Ahead{next, source.bits, unsigned(group_bytes / kImage / 2)});
  }
};

template <typename Vec, typename Source>
struct ImageValues {
  using Values = HeadWideValues<Vec, 8>;
  static constexpr size_t kSliceImages = 4 * kBlockImages * kImage;

  static void mix(const MixTask& task) {
    const ImageSource& source = Source::get();
    const typename Values::Scratch scratch(task.scratch);
    for (int i = 0; i < task.n_pieces; ++i) {
      const ValuePiece& piece = task.pieces[i];
      source.value_scales(piece.values, task.head_dim, scratch.scales + piece.column - piece.first, task.tcq);
    }
    typename Values::TilePieces tiles[kBlockRows];
    Values::prepare(task, 1.0f, scratch, tiles);
    static constexpr int8_t kNone[16] = {};
    const auto table = Vec::load_table(kNone);
    const int at_once = source.values_at_once();
    const size_t page_images = size_t(at_once / kSlice) * kSliceImages;
    for (int first = 0; first < task.head_dim; first += at_once) {
      for (int i = 0; i < task.n_pieces; ++i) {
        const ValuePiece& piece = task.pieces[i];
        source.values(piece.values, task.head_dim, first, scratch.scales + piece.column - piece.first,
                      scratch.images + size_t(i) * page_images, task.tcq);
      }
      for (int d = first; d < first + at_once; d += kSlice) {
        typename Values::Slice slice{};
        for (int i = 0; i < task.n_pieces; ++i)
          slice.pages[i] =
              scratch.images + size_t(i) * page_images + size_t((d - first) / kSlice) * kSliceImages;
        Values::prefetch_keys(task, d, 4 * source.bits * kImage);
        Values::template mix_tiles<8>(task, tiles, d, scratch, slice, table, still(scratch.images));
      }
    }
  }
};

template <typename Vec, typename Source>
constexpr KeyProducer image_keys() {
  using P = ImageKeys<Vec, Source>;
  return {Source::kType, P::Keys::query_bytes, P::pack_query, P::score};
}
template <typename Vec, typename Source>
constexpr ValueProducer image_values() {
  return {Source::kType, ImageValues<Vec, Source>::mix,
          trellis_bits(Source::kType) ? trellis_stripes(KvSide::kValue) : 1};
}

// Source of a type by the code of image_source.cpp.
template <DType type>
struct SharedSource {
  static constexpr DType kType = type;
  static const ImageSource& get() { return *image_source(type); }
};

template <typename Vec, template <DType> typename Trellis>
const KeyProducer* image_key_producer(DType type) {
  static constexpr KeyProducer kRows[] = {
      image_keys<Vec, Trellis<DType::tbq2_ht>>(),  image_keys<Vec, Trellis<DType::tbq3_ht>>(),
      image_keys<Vec, Trellis<DType::tbq4_ht>>(),  PlanarKeys<Vec, DType::tbq3_0>::kProducer,
      PlanarKeys<Vec, DType::tbq4_0>::kProducer,   PlanarKeys<Vec, DType::q4_polar>::kProducer,
      PlanarKeys<Vec, DType::qjl1_256>::kProducer, image_keys<Vec, Trellis<DType::tbq3_tcq>>(),
  };
  for (const KeyProducer& row : kRows)
    if (row.type == type) return &row;
  return nullptr;
}

template <typename Vec, template <DType> typename Trellis>
const ValueProducer* image_value_producer(DType type) {
  static constexpr ValueProducer kRows[] = {
      image_values<Vec, Trellis<DType::tbq2_ht>>(),
      image_values<Vec, Trellis<DType::tbq3_ht>>(),
      image_values<Vec, Trellis<DType::tbq4_ht>>(),
      image_values<Vec, PlanarImages<Vec, DType::tbq3_0>>(),
      image_values<Vec, PlanarImages<Vec, DType::tbq4_0>>(),
      image_values<Vec, PlanarImages<Vec, DType::q4_polar>>(),
      image_values<Vec, Trellis<DType::tbq3_tcq>>(),
  };
  for (const ValueProducer& row : kRows)
    if (row.type == type) return &row;
  return nullptr;
}

template <typename Vec, template <DType> typename Trellis>
constexpr ImageKernels image_kernels_of() {
  return {image_key_producer<Vec, Trellis>, image_value_producer<Vec, Trellis>, encode_planar_page<Vec>};
}

}  // namespace
}  // namespace kvasir::cpu
