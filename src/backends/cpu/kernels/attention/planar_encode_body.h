// Encodes a page of tbq3_0 or tbq4_0: each block of 32 dimensions as a head-wide row of 32
// (headwide_encode_body.h), with the bytes of the scalar codec. Included into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_encode_body.h"
#include "backends/cpu/kernels/attention/polar_qjl_encode_body.h"
#include "formats/tbq_0.h"

namespace kvasir::cpu {
namespace {

template <int n>
constexpr HeadWideTable block_table(const float (&levels)[n], const formats::Midpoints<n>& midpoints) {
  HeadWideTable table{};
  for (int i = 0; i < 16; ++i) {
    table.level[i] = levels[i % n];
    table.midpoint[i] = midpoints.between[i % n < n - 1 ? i % n : 0];
  }
  return table;
}

template <typename Vec, DType type>
struct PlanarEncoder {
  using F = typename Vec::F;
  static constexpr PlanarForm kForm = planar_form(type);
  static constexpr int kBits = kForm.bits, n = Vec::kN;
  using Encoder = HeadWideEncoder<Vec, kBits>;

  static const HeadWideTable& table() {
    static constexpr HeadWideTable k3 = block_table(formats::kTbq3Levels, formats::kTbq3Midpoints),
                                   k4 = block_table(formats::kTbq4Levels, formats::kTbq4Midpoints);
    return kBits == 3 ? k3 : k4;
  }

  static void encode(KvSide side, int head_dim, const std::byte* exact, std::byte* region) {
    const Encoder encoder{table(), kForm.values};
    const F16* x = reinterpret_cast<const F16*>(exact);
    const bool key = side == KvSide::kKey;
    const int n_images = head_dim / kBlockDims;
    alignas(64) std::byte images[2 * kBlockImages * kImage];
    for (int half = 0; half < 2; ++half)
      for (int b = 0; b < kForm.n_blocks(head_dim); ++b) {
        TokenSums sums;
        if (key)
          encoder.encode_keys(x + (size_t(half) * head_dim + size_t(b) * 32) * 32, sums, images);
        else
          encoder.encode_values(x + size_t(b) * 32 * kPage, half * 32, sums, images);
        for (int i = 0; i < 2; ++i)
          Encoder::gather_block(
              images + i * kBlockImages * kImage,
              region + size_t(key ? half * n_images + b * 2 + i : b * 4 + half * 2 + i) * kBits * kImage);
        finish(side, head_dim, b, half * 32, sums, region);
      }
  }

  // Scales of 32 tokens; a block whose scale is 0 has its codes cleared.
  static void finish(KvSide side, int head_dim, int b, int first, const TokenSums& sums, std::byte* region) {
    alignas(64) uint16_t scales[32];
    const F limit = Vec::set1(65504.0f);
    for (int t = 0; t < 32; t += n) {
      const F exact = Vec::div(Vec::load(sums.products + t), Vec::load(sums.levels + t));
      const F scale = Vec::if_less(limit, exact, limit, exact);
      Vec::store(reinterpret_cast<F16*>(scales + t),
                 Vec::if_less(Vec::zero(), Vec::load(sums.inverse + t), scale, Vec::zero()));
    }
    __builtin_memcpy(region + (side == KvSide::kKey ? kForm.key_scale(head_dim, b, first)
                                                    : kForm.value_scale(head_dim, b, first)),
                     scales, sizeof(scales));
    constexpr size_t kBlock = size_t(kBits) * 4 + 2;
    for (int t = 0; t < 32; ++t) {
      if (scales[t] != 0) continue;
      std::byte wire[kMaxHeadDim];
      unpack_row(type, side, head_dim, region, first + t, wire);
      __builtin_memset(wire + size_t(b) * kBlock, 0, kBlock);
      pack_row(type, side, head_dim, wire, first + t, region);
    }
  }
};

template <typename Vec>
void encode_planar_page(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                        const formats::TcqTable* tcq) {
  switch (type) {
    case DType::tbq3_0:
      return PlanarEncoder<Vec, DType::tbq3_0>::encode(side, head_dim, exact, region);
    case DType::tbq4_0:
      return PlanarEncoder<Vec, DType::tbq4_0>::encode(side, head_dim, exact, region);
    case DType::q4_polar:
      return PolarEncoder<Vec>::encode(side, head_dim, exact, region);
    case DType::qjl1_256:
      return QjlEncoder<Vec>::encode(head_dim, exact, region);
    default:
      return encode_page_scalar(type, side, head_dim, exact, region, tcq);
  }
}

}  // namespace
}  // namespace kvasir::cpu
