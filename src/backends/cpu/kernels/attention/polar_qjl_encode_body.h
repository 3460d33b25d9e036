// Encodes a page of q4_polar or of keys of qjl1_256 with the bytes of the scalar codecs (formats/q4_polar.h,
// formats/qjl1_256.h). Their sums run along a row in one order, so tokens lie across lanes: rows of kTokens
// tokens, a block of 128 dimensions at a time. Included into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_encode_body.h"
#include "formats/q4_polar.h"
#include "formats/qjl1_256.h"

namespace kvasir::cpu {
namespace {

constexpr int kRowTokens = 16;

// x[i][t]: dimension first + i of token `token` + t, from an exact region.
template <typename Vec>
void load_rows(KvSide side, int head_dim, const std::byte* exact, int first, int token,
               float (*x)[kRowTokens]) {
  const F16* from = reinterpret_cast<const F16*>(exact);
  if (side == KvSide::kKey) {
    from += (size_t(token / 32) * size_t(head_dim) + size_t(first)) * 32 + token % 32;
    for (int i = 0; i < 128; ++i)
      for (int t = 0; t < kRowTokens; t += Vec::kN) Vec::store(x[i] + t, Vec::load(from + i * 32 + t));
    return;
  }
  alignas(64) float slice[32];
  for (int d = 0; d < 128; d += 32)
    for (int t = 0; t < kRowTokens; ++t) {
      const F16* row = from + size_t(first + d) * kPage + size_t(token + t) * 32;
      for (int i = 0; i < 32; i += Vec::kN) Vec::store(slice + i, Vec::load(row + i));
      for (int i = 0; i < 32; ++i) x[d + i][t] = slice[i];
    }
}

template <typename Vec>
struct PolarEncoder {
  using F = typename Vec::F;
  static constexpr PlanarForm kForm = planar_form(DType::q4_polar);
  static constexpr int n = Vec::kN;
  using Encoder = HeadWideEncoder<Vec, 4>;

  // Of kRowTokens rows.
  struct Block {
    alignas(64) float x[128][kRowTokens], level[128][kRowTokens], v[128][kRowTokens];
    alignas(64) int32_t code[128][kRowTokens];
    alignas(64) float to_unit[kRowTokens], scale[kRowTokens];
    bool side[kRowTokens];
  };

  static const HeadWideTable& table() {
    static constexpr HeadWideTable kTable = [] {
      HeadWideTable t{};
      for (int i = 0; i < 16; ++i) {
        t.level[i] = formats::kPolarLevels[i];
        t.midpoint[i] = formats::kPolarMidpoints[i < 15 ? i : 0];
      }
      return t;
    }();
    return kTable;
  }

  static void find_units(Block& b) {
    double squares[kRowTokens] = {};
    for (int i = 0; i < 128; ++i)
      for (int t = 0; t < kRowTokens; ++t) squares[t] += double(b.x[i][t]) * double(b.x[i][t]);
    for (int t = 0; t < kRowTokens; ++t) {
      const float norm = float(__builtin_sqrt(squares[t]));
      b.to_unit[t] = norm > 1e-10f ? formats::kRoot128 / norm : 0.0f;
    }
  }

  static void find_codes(Block& b) {
    const Encoder encoder{table(), 128};
    alignas(64) float products[32][kRowTokens] = {}, levels[32][kRowTokens] = {};
    for (int i = 0; i < 128; ++i)
      for (int t = 0; t < kRowTokens; t += n) {
        const F x = Vec::load(b.x[i] + t), v = Vec::mul(x, Vec::load(b.to_unit + t));
        const auto coded = encoder.code_of(v);
        Vec::istore(b.code[i] + t, coded.code);
        Vec::store(b.level[i] + t, coded.level);
        Vec::store(b.v[i] + t, v);
        float *p = products[i % 32] + t, *l = levels[i % 32] + t;
        Vec::store(p, Vec::add(Vec::load(p), Vec::mul(x, coded.level)));
        Vec::store(l, Vec::add(Vec::load(l), Vec::mul(coded.level, coded.level)));
      }
    for (int width = 16; width > 0; width /= 2)
      for (int i = 0; i < width; ++i)
        for (int t = 0; t < kRowTokens; ++t)
          products[i][t] += products[i + width][t], levels[i][t] += levels[i + width][t];
    for (int t = 0; t < kRowTokens; t += n) {
      const F limit = Vec::set1(65504.0f);
      const F exact = Vec::div(Vec::mul(Vec::set1(formats::kRoot128), Vec::load(products[0] + t)),
                               Vec::load(levels[0] + t));
      Vec::store(b.scale + t, Vec::if_less(limit, exact, limit, exact));
    }
  }

  // On which side of the residual's hyperplane the rest of each row lies.
  static void find_sides(Block& b) {
    double side[kRowTokens] = {};
    for (int i = 0; i < 128; ++i) {
      const double sign = formats::kPolarSigns[size_t(i)];
      for (int t = 0; t < kRowTokens; ++t) side[t] += double(b.v[i][t] - b.level[i][t]) * sign;
    }
    for (int t = 0; t < kRowTokens; ++t) b.side[t] = side[t] >= 0;
  }

  static void encode(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
    const bool key = side == KvSide::kKey;
    const int n_images = head_dim / kBlockDims;
    alignas(64) uint8_t images[8 * kBlockImages * kImage];  // of 128 dimensions and 32 tokens
    Block b;
    for (int half = 0; half < 2; ++half)
      for (int block = 0; block < kForm.n_blocks(head_dim); ++block) {
        for (int token = half * 32; token < half * 32 + 32; token += kRowTokens) {
          load_rows<Vec>(side, head_dim, exact, block * 128, token, b.x);
          find_units(b);
          find_codes(b);
          find_sides(b);
          store_scales(key, head_dim, block, token, b, region);
          for (int i = 0; i < 128; ++i)
            for (int t = 0; t < kRowTokens; ++t) {
              const int at = token % 32 + t;
              images[i / 16 * kBlockImages * kImage +
                     (key ? (i % 16 / 4 * 2 + at / 16) * kImage + at % 16 * 4 + i % 4
                          : at / 4 * kImage + i % 16 * 4 + at % 4)] = uint8_t(b.code[i][t]);
            }
        }
        for (int i = 0; i < 8; ++i) {
          const int d = block * 8 + i;
          Encoder::gather_block(
              reinterpret_cast<const std::byte*>(images) + i * kBlockImages * kImage,
              region + size_t(key ? half * n_images + d : d / 2 * 4 + half * 2 + d % 2) * 4 * kImage);
        }
      }
  }

  // Scales and residuals; a row whose scale is 0 has nothing else.
  static void store_scales(bool key, int head_dim, int block, int token, Block& b, std::byte* region) {
    alignas(64) uint16_t bits[kRowTokens];
    for (int t = 0; t < kRowTokens; t += n)
      Vec::store(reinterpret_cast<F16*>(bits + t), Vec::load(b.scale + t));
    for (int t = 0; t < kRowTokens; ++t) {
      const bool empty = b.to_unit[t] == 0 || bits[t] == 0;
      if (empty) bits[t] = 0;
      for (int i = 0; i < 128 && empty; ++i) b.code[i][t] = 0;
      std::byte* residual = region + kForm.residuals(head_dim, token + t) + size_t(block) * 16;
      __builtin_memset(residual, 0, 16);
      residual[0] = std::byte(!empty && b.side[t]);
    }
    __builtin_memcpy(
        region + (key ? kForm.key_scale(head_dim, block, token) : kForm.value_scale(head_dim, block, token)),
        bits, sizeof(bits));
  }
};

template <typename Vec>
struct QjlEncoder {
  using F = typename Vec::F;
  static constexpr PlanarForm kForm = planar_form(DType::qjl1_256);
  static constexpr int n = Vec::kN, kTogether = 4;
  static constexpr int kVectors = n == 8 ? 2 : 4;  // of a register tile beside kTogether tokens

  // Signs of kTogether sketches, kVectors * n of them from j on.
  static void sketch(const float (*x)[kRowTokens], int token, int j, float (*out)[kVectors * n]) {
    F sums[kTogether][kVectors];
#pragma GCC unroll 4
    for (int t = 0; t < kTogether; ++t)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[t][v] = Vec::zero();
    const float* row = formats::qjl_projection() + j;
    for (int i = 0; i < 128; ++i, row += formats::kSketch) {
      F p[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) p[v] = Vec::load(row + v * n);
#pragma GCC unroll 4
      for (int t = 0; t < kTogether; ++t) {
        const F q = Vec::set1(x[i][token + t]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[t][v] = Vec::add(sums[t][v], Vec::mul(q, p[v]));
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < kTogether; ++t)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Vec::store(out[t] + v * n, sums[t][v]);
  }

  // Signs j .. j + 15 of a key into their lines (kv_page.h: image z in bit z).
  static void store_signs(const float* sketch, int key, std::byte* line) {
    uint8_t* out = reinterpret_cast<uint8_t*>(line) + key % 16 * 4;
    for (int i = 0; i < 4; ++i) {
      const int bits =
          (sketch[i] > 0) | (sketch[4 + i] > 0) << 2 | (sketch[8 + i] > 0) << 4 | (sketch[12 + i] > 0) << 6;
      out[i] = uint8_t(out[i] | bits << (key / 16));
    }
  }

  static void encode(int head_dim, const std::byte* exact, std::byte* region) {
    alignas(64) float x[128][kRowTokens], signs[kTogether][kVectors * n];
    const int n_images = kForm.n_blocks(head_dim) * kForm.dims / kBlockDims;
    __builtin_memset(region, 0, kForm.code_bytes(head_dim));
    for (int token = 0; token < kPage; token += kRowTokens)
      for (int block = 0; block < kForm.n_blocks(head_dim); ++block) {
        load_rows<Vec>(KvSide::kKey, head_dim, exact, block * 128, token, x);
        store_norms(x, head_dim, block, token, region);
        for (int j = 0; j < kForm.dims; j += kVectors * n)
          for (int t = 0; t < kRowTokens; t += kTogether) {
            sketch(x, t, j, signs);
            for (int k = 0; k < kTogether; ++k)
              for (int i = 0; i < kVectors * n; i += kBlockDims)
                store_signs(
                    signs[k] + i, (token + t + k) % 32,
                    region +
                        size_t(token / 32 * n_images + (block * kForm.dims + j + i) / kBlockDims) * kImage);
          }
      }
  }

  static void store_norms(const float (*x)[kRowTokens], int head_dim, int block, int token,
                          std::byte* region) {
    float squares[kRowTokens] = {};
    for (int i = 0; i < 128; ++i)
      for (int t = 0; t < kRowTokens; ++t) squares[t] += x[i][t] * x[i][t];
    uint16_t bits[kRowTokens];
    for (int t = 0; t < kRowTokens; ++t) bits[t] = f32_to_bf16(__builtin_sqrtf(squares[t]));
    __builtin_memcpy(region + kForm.key_scale(head_dim, block, token), bits, sizeof(bits));
  }
};

}  // namespace
}  // namespace kvasir::cpu
