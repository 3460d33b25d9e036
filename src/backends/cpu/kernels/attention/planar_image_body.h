// Images of the published types (tbq3_0 tbq4_0 q4_polar, keys of qjl1_256) by whole numbers only, so that
// every ISA makes the same bytes (image_source.h has the errors):
//   scale   = max_b d_b * unit * L / 127                     of a row; L the largest |level|
//   share_b = min(32767, nearest(32768 d_b * (unit * L / 127) / scale))       of a block, 15 bits
//   byte    = (((level16 * share_b + 2^14) >> 15) + 64) >> 7,   level16 = nearest(128 * 127 * level / L)
// Included into an unnamed namespace by image_source.cpp and by the image file of each ISA.
#pragma once
#include <type_traits>
#include <utility>

#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/image_source.h"
#include "base/mutation.h"
#include "formats/q4_polar.h"
#include "formats/qjl1_256.h"
#include "formats/tbq_0.h"

namespace kvasir::cpu {
namespace {

struct PlanarLevels {
  alignas(32) int16_t level[16];  // level16, of period 2^bits
  int8_t byte[16];                // nearest(127 * level / L)
  float step;                     // unit * L / 127
};
template <int n>
constexpr PlanarLevels planar_levels(const float (&levels)[n], float unit) {
  PlanarLevels out{};
  const float top = levels[n - 1];
  for (int i = 0; i < 16; ++i) {
    const float exact = levels[i % n] * (16256.0f / top);
    out.level[i] = int16_t(exact < 0 ? exact - 0.5f : exact + 0.5f);
    const float whole = levels[i % n] * (127.0f / top);
    out.byte[i] = int8_t(whole < 0 ? whole - 0.5f : whole + 0.5f);
  }
  out.step = unit * top / 127.0f;
  return out;
}
inline constexpr float kSignLevels[2] = {-1.0f, 1.0f};

template <DType type>
constexpr PlanarLevels planar_levels_of() {
  if constexpr (type == DType::tbq3_0)
    return planar_levels(formats::kTbq3Levels, 1.0f);
  else if constexpr (type == DType::tbq4_0)
    return planar_levels(formats::kTbq4Levels, 1.0f);
  else if constexpr (type == DType::q4_polar)
    return planar_levels(formats::kPolarLevels, formats::kInverseRoot128);
  else
    return planar_levels(kSignLevels, formats::kSketchScale);
}

template <typename Vec, DType type>
struct PlanarImages {
  using F = typename Vec::F;
  using I = typename Vec::I;
  using Scale = std::conditional_t<type == DType::qjl1_256, BF16, F16>;
  static constexpr int n = Vec::kN;
  static constexpr PlanarForm kForm = planar_form(type);
  static constexpr PlanarLevels kLevels = planar_levels_of<type>();
  static constexpr int kLines = kForm.bits * kImage, kMaxBlocks = kMaxHeadDim / kForm.values;

  static F load_scales(const std::byte* p) { return Vec::load(reinterpret_cast<const Scale*>(p)); }
  static F inverse_of(F scale) {
    return Vec::if_less(Vec::zero(), scale, Vec::div(Vec::set1(1.0f), scale), Vec::zero());
  }
  static I share_of(F d, F inverse) {
    const F share = Vec::mul(Vec::mul(d, Vec::set1(kLevels.step * 32768.0f)), inverse),
            top = Vec::set1(32767.0f);
    return Vec::to_int(Vec::max(Vec::if_less(share, top, share, top), Vec::zero()));
  }
  [[gnu::always_inline]] static I bytes(const typename Vec::WideTable& table, I codes, I even_share,
                                        I odd_share) {
    const I to_byte = Vec::iset1(0x01000100);
    I even, odd;
    Vec::lookup_wide(table, codes, even, odd);
    even = Vec::mul_round15(Vec::mul_round15(even, even_share), to_byte);
    odd = Vec::mul_round15(Vec::mul_round15(odd, odd_share), to_byte);
    return Vec::join_bytes(even, odd);
  }

  static typename Vec::WideTable table() {
    if (mutated(Mutation::kBlockLevel)) {
      alignas(32) int16_t levels[16];
      for (int i = 0; i < 16; ++i) levels[i] = int16_t(kLevels.level[i] + (i == 2 ? 3 * 128 : 0));
      return Vec::load_wide_table(levels);
    }
    return Vec::load_wide_table(kLevels.level);
  }

  // Scales of n tokens, `stride` bytes from block to block.
  static F row_scale(const std::byte* plane, size_t stride, int n_blocks) {
    F top = Vec::zero();
    for (int b = 0; b < n_blocks; ++b) top = Vec::max(load_scales(plane + size_t(b) * stride), top);
    return Vec::mul(top, Vec::set1(kLevels.step));
  }

  static void value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
    const std::byte* plane = region + kForm.value_scale(head_dim, 0, 0);
    for (int t = 0; t < kPage; t += n) {
      const F scale = row_scale(plane + t * 2, kPage * 2, kForm.n_blocks(head_dim));
      Vec::store(scales + t, scale);
      Vec::store(scales + kChunk + t, inverse_of(scale));
    }
  }

  static void values(const std::byte* region, int head_dim, int d, const float* scales, std::byte* images,
                     const formats::TcqTable*) {
    // Of token t, and of t + 2 in the upper half: the even bytes of four tokens take one such word, the odd
    // bytes the next.
    alignas(64) int32_t share[kPage + n], pairs[kPage];
    const std::byte* plane = region + kForm.value_scale(head_dim, d / kForm.dims, 0);
    for (int t = 0; t < kPage; t += n)
      Vec::istore(share + t, share_of(load_scales(plane + t * 2), Vec::load(scales + kChunk + t)));
    Vec::istore(share + kPage, Vec::izero());
    for (int t = 0; t < kPage; t += n)
      Vec::istore(pairs + t, Vec::bit_or(Vec::iload(share + t),
                                         Vec::template shift_left32<16>(Vec::iload(share + t + 2))));
    const auto levels = table();
    const std::byte* lines = region + size_t(d / kSlice) * 4 * kLines;
    for (int i = 0; i < 4; ++i, lines += kLines, images += kBlockImages * kImage) {
      for (int l = 0; l < kLines; l += kImage) __builtin_prefetch(lines + 4 * kLines + l, 0, 3);
      for (int lane = 0; lane < kImage / 4; lane += n) {
        const ImageReader<Vec, kForm.bits> reader(lines + lane * 4);
        static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
          const int32_t* s = pairs + i / 2 * 32 + z * 4;  // of the four tokens of every lane
          Vec::istore(images + z * kImage + lane * 4,
                      bytes(levels, reader.template codes<z>(), Vec::iset1(s[0]), Vec::iset1(s[1])));
        });
      }
    }
  }

  // Rows of one block of 128 values: what a sum is worth, its codes, and where its sketch goes.
  struct SketchRows {
    alignas(64) int16_t codes[Vec::kTileRows][kForm.values];
    float scale[Vec::kTileRows];
    float* out;
  };
  template <int kRows>
  struct Sketch {
    static void call(const SketchRows& rows) {
      constexpr int kVectors = 2;
      for (int j = 0; j < kForm.dims; j += kVectors * n) {
        typename Vec::Dot sums[kRows][kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = Vec::dot_zero();
        const int16_t* words = sketch_words() + 2 * j;
#pragma GCC unroll 4
        for (int i = 0; i < kForm.values; i += 2, words += 2 * kForm.dims) {
          const I first = Vec::iload(words), second = Vec::iload(words + 2 * n);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const I x = Vec::iset1(load_word(reinterpret_cast<const uint8_t*>(rows.codes[r] + i)));
            sums[r][0] = Vec::dot16(sums[r][0], first, x);
            sums[r][1] = Vec::dot16(sums[r][1], second, x);
          }
        }
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          float* out = rows.out + r * kMaxImageDims + j;
          const F scale = Vec::set1(rows.scale[r]);
          Vec::store(out, Vec::mul(Vec::to_float(Vec::dot_sum(sums[r][0])), scale));
          Vec::store(out + n, Vec::mul(Vec::to_float(Vec::dot_sum(sums[r][1])), scale));
        }
      }
    }
  };

  // Not inlined: compilers take its output for unset where they see how a tile is dispatched.
  [[gnu::noinline]] static void query(const float* const* q, int n_rows, int head_dim, float* out) {
    SketchRows rows;
    for (int d = 0; d < head_dim; d += kForm.values) {
      for (int r = 0; r < n_rows; ++r) {
        F top = Vec::zero(), poison = Vec::zero();  // poison: NaN when a value is not finite, else 0
        for (int i = 0; i < kForm.values; i += n) {
          const F x = Vec::load(q[r] + d + i);
          top = Vec::max(top, Vec::abs(x));
          poison = Vec::add(poison, Vec::mul(x, Vec::zero()));
        }
        const float most = Vec::reduce_max(top);
        const F to_code = Vec::set1(most > 1e-30f ? float(kSketchCodes) / most : 0.0f);
        for (int i = 0; i < kForm.values; i += n)
          Vec::store_s16(rows.codes[r] + i, Vec::mul(Vec::load(q[r] + d + i), to_code));
        rows.scale[r] = most * (1.0f / (float(kSketchCodes) * float(kSketchUnit))) + Vec::reduce_add(poison);
      }
      rows.out = out + d * (kForm.dims / kForm.values);
      by_rows<Sketch, Vec::kTileRows, const SketchRows&>(n_rows, rows);
    }
    for (int r = 0; r < n_rows && mutated(Mutation::kSketchSign); ++r) {
      float* row = out + r * kMaxImageDims;
      row[7] = -row[7];
    }
  }

  static constexpr DType kType = type;
  static constexpr bool kKeysOnly = type == DType::qjl1_256;
  static constexpr ImageSource kSource{type,
                                       kForm.dims / kForm.values,
                                       kForm.bits,
                                       kKeysOnly ? query : nullptr,
                                       nullptr,
                                       kKeysOnly ? nullptr : value_scales,
                                       kKeysOnly ? nullptr : values};
  static const ImageSource& get() { return kSource; }
};

}  // namespace
}  // namespace kvasir::cpu
