// Encodes a page of the head-wide types from its exact f16 rows, with the bytes of the scalar codec
// (formats/tbq_h.h): the same 32 accumulators a sum and the same folds. f16 values need no taming.
// Keys lie with tokens across lanes, values with dimensions across lanes (kv_page.h), and so do their codes'
// images: four vectors of codes make a vector of an image by shifts, whichever side it is. Included by each
// ISA file, into an unnamed namespace.
#pragma once
#include <utility>

#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// Of 32 tokens.
struct TokenSums {
  alignas(64) float inverse[32];   // sqrt(d / sum r^2), 0 for a zero row
  alignas(64) float products[32];  // sum r level
  alignas(64) float levels[32];    // sum level^2
};

template <typename Vec, int kBits>
struct HeadWideEncoder {
  using F = typename Vec::F;
  using I = typename Vec::I;
  static constexpr int n = Vec::kN;
  const HeadWideTable& table;
  int head_dim;

  struct Coded {
    I code;
    F level;
  };
  [[gnu::always_inline]] Coded code_of(F v) const {
    I code = Vec::izero();
#pragma GCC unroll 16
    for (int i = 0; i + 1 < 1 << kBits; ++i) {
      float bound = table.midpoint[i];
      if (mutated(Mutation::kMidpoint) && i == 1) bound += 0.01f;
      code = Vec::count_less(code, Vec::set1(bound), v);
    }
    return {code, Vec::lookup16(table.level, code)};
  }

  // Adds vector `byte` of the four of an image's lanes.
  template <int byte>
  [[gnu::always_inline]] static I put_byte(I word, I code) {
    if constexpr (byte == 0) return code;
    return Vec::bit_or(word, Vec::template shift_left32<8 * byte>(code));
  }

  // Folds 32 accumulators of n tokens: acc[residue][token].
  static void fold_tokens(float (*acc)[n], float* out) {
    for (int width = 16; width > 0; width /= 2)
      for (int i = 0; i < width; ++i)
        Vec::store(acc[i], Vec::add(Vec::load(acc[i]), Vec::load(acc[i + width])));
    Vec::store(out, Vec::load(acc[0]));
  }

  void invert(float* squares_to_inverse) const {
    for (int t = 0; t < 32; t += n) {
      const F mean = Vec::mul(Vec::load(squares_to_inverse + t), Vec::set1(1.0f / float(head_dim)));
      const F inverse = Vec::div(Vec::set1(1.0f), Vec::sqrt(mean));
      Vec::store(squares_to_inverse + t, Vec::if_less(Vec::zero(), mean, inverse, Vec::zero()));
    }
  }

  // Keys: x is [head_dim][32] of one group. Images go to [head_dim / 16][8][64].
  void encode_keys(const F16* x, TokenSums& sums, std::byte* images) const {
    alignas(64) float a[32][n], b[32][n];
    for (int first = 0; first < 32; first += n) {
      for (int residue = 0; residue < 32; ++residue) {
        F sum = Vec::zero();
        for (int d = residue; d < head_dim; d += 32) {
          const F v = Vec::load(x + d * 32 + first);
          sum = Vec::add(sum, Vec::mul(v, v));
        }
        Vec::store(a[residue], sum);
      }
      fold_tokens(a, sums.inverse + first);
    }
    invert(sums.inverse);
    for (int first = 0; first < 32; first += n) {
      const F inverse = Vec::load(sums.inverse + first);
      for (int residue = 0; residue < 32; residue += 4) {
        F products[4], levels[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) products[j] = levels[j] = Vec::zero();
        for (int d = residue; d < head_dim; d += 32) {
          I word = Vec::izero();
          static_for<4>([&](auto j) [[gnu::always_inline]] {
            const F v = Vec::load(x + (d + j) * 32 + first);
            const Coded c = code_of(Vec::mul(v, inverse));
            products[j] = Vec::add(products[j], Vec::mul(v, c.level));
            levels[j] = Vec::add(levels[j], Vec::mul(c.level, c.level));
            word = put_byte<j>(word, c.code);
          });
          const int image = d / 16 * 8 + d % 16 / 4 * 2 + first / 16;
          Vec::istore(images + image * kImage + first % 16 * 4, word);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          Vec::store(a[residue + j], products[j]);
          Vec::store(b[residue + j], levels[j]);
        }
      }
      fold_tokens(a, sums.products + first);
      fold_tokens(b, sums.levels + first);
    }
  }

  static constexpr int kSums = 32 / n;  // vectors of the 32 accumulators of one token

  // Folds the accumulators of one token, which lie across lanes.
  static float fold_lanes(F (&acc)[kSums]) {
#pragma GCC unroll 4
    for (int width = kSums / 2; width > 0; width /= 2)
#pragma GCC unroll 4
      for (int i = 0; i < width; ++i) acc[i] = Vec::add(acc[i], acc[i + width]);
    return Vec::reduce_add(acc[0]);
  }

  // Values: x(d / 32) is [64][32]; tokens first .. first + 31. Images go to [head_dim / 16][8][64].
  void encode_values(const F16* x, int first, TokenSums& sums, std::byte* images) const {
    for (int t = 0; t < 32; ++t) {
      F squares[kSums];
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) squares[i] = Vec::zero();
      for (int d = 0; d < head_dim; d += 32)
#pragma GCC unroll 8
        for (int i = 0; i < kSums; ++i) {
          const F v = Vec::load(x + d * kPage + (first + t) * 32 + i * n);
          squares[i] = Vec::add(squares[i], Vec::mul(v, v));
        }
      sums.inverse[t] = fold_lanes(squares);
    }
    invert(sums.inverse);
    for (int t = 0; t < 32; t += 4) encode_four(x + (first + t) * 32, t, sums, images + t / 4 * kImage);
  }

  // Four tokens from `t`, which share an image of every block.
  void encode_four(const F16* x, int t, TokenSums& sums, std::byte* image) const {
    F products[4][kSums], levels[4][kSums], inverse[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      inverse[j] = Vec::set1(sums.inverse[t + j]);
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i) products[j][i] = levels[j][i] = Vec::zero();
    }
    for (int d = 0; d < head_dim; d += 32)
      static_for<kSums>([&](auto i) [[gnu::always_inline]] {
        I word = Vec::izero();
        static_for<4>([&](auto j) [[gnu::always_inline]] {
          const F v = Vec::load(x + d * kPage + j * 32 + i * n);
          const Coded c = code_of(Vec::mul(v, inverse[j]));
          products[j][i] = Vec::add(products[j][i], Vec::mul(v, c.level));
          levels[j][i] = Vec::add(levels[j][i], Vec::mul(c.level, c.level));
          word = put_byte<j>(word, c.code);
        });
        const int dim = d + i * n;
        Vec::istore(image + dim / 16 * kBlockImages * kImage + dim % 16 * 4, word);
      });
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums.products[t + j] = fold_lanes(products[j]);
      sums.levels[t + j] = fold_lanes(levels[j]);
    }
  }

  // Images of one block to its lines.
  static void gather_block(const std::byte* images, std::byte* block) {
    for (int at = 0; at < kImage; at += 4 * n) {
      I line[kBits];
#pragma GCC unroll 4
      for (int l = 0; l < kBits; ++l) line[l] = Vec::izero();
      static_for<kBlockImages>([&](auto z) [[gnu::always_inline]] {
        constexpr CodeField field = code_field(kBits, z);
        I code = Vec::iload(images + z * kImage + at);
        if constexpr (field.high_line >= 0) {
          constexpr int kTo = field.high_at - field.bits;
          const I high = Vec::bit_and(code, Vec::iset1(0x04040404));
          line[field.high_line] = Vec::bit_or(line[field.high_line], Vec::template shift_left32<kTo>(high));
          code = Vec::bit_and(code, Vec::iset1(0x03030303));
        }
        if constexpr (field.at > 0) code = Vec::template shift_left32<field.at>(code);
        line[field.line] = Vec::bit_or(line[field.line], code);
      });
#pragma GCC unroll 4
      for (int l = 0; l < kBits; ++l) Vec::istore(block + l * kImage + at, line[l]);
    }
  }

  // Scales of 32 tokens; a row whose scale is 0 has its codes cleared.
  void finish(KvSide side, int first, const TokenSums& sums, std::byte* region) const {
    static constexpr std::byte kZeroRow[kMaxHeadDim] = {};
    alignas(64) uint16_t scales[32];
    for (int t = 0; t < 32; t += n) {
      const F levels = Vec::load(sums.levels + t);
      const F exact = Vec::div(Vec::load(sums.products + t), levels);
      const F limit = Vec::set1(65504.0f);
      const F scale = Vec::if_less(limit, exact, limit, exact);
      const F inverse = Vec::load(sums.inverse + t);
      Vec::store(reinterpret_cast<F16*>(scales + t), Vec::if_less(Vec::zero(), inverse, scale, Vec::zero()));
    }
    if (mutated(Mutation::kScalesSwapped)) std::swap(scales[0], scales[1]);
    constexpr DType type = kBits == 2 ? DType::tbq2_h : kBits == 3 ? DType::tbq3_h : DType::tbq4_h;
    for (int t = 0; t < 32; ++t)
      if (scales[t] == 0) pack_row(type, side, head_dim, kZeroRow, first + t, region);
    __builtin_memcpy(region + head_wide_scales(kBits, head_dim) + size_t(first) * 2, scales, sizeof(scales));
  }

  static void encode(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
    const HeadWideEncoder encoder{head_wide_table(kBits, head_dim), head_dim};
    const F16* x = reinterpret_cast<const F16*>(exact);
    const int n_blocks = head_dim / kBlockDims;
    alignas(64) std::byte images[kMaxHeadDim / kBlockDims * kBlockImages * kImage];
    for (int half = 0; half < 2; ++half) {
      TokenSums sums;
      const bool key = side == KvSide::kKey;
      if (key)
        encoder.encode_keys(x + size_t(half) * 32 * head_dim, sums, images);
      else
        encoder.encode_values(x, half * 32, sums, images);
      for (int b = 0; b < n_blocks; ++b)
        gather_block(
            images + b * kBlockImages * kImage,
            region + size_t(key ? half * n_blocks + b : b / 2 * 4 + half * 2 + b % 2) * kBits * kImage);
      encoder.finish(side, half * 32, sums, region);
    }
  }
};

}  // namespace
}  // namespace kvasir::cpu
