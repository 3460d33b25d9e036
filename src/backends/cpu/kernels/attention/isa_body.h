// Assembles the kernels of one ISA from the generic bodies. An ISA file defines nothing but its vector type
// and one call.
#pragma once
#include "backends/cpu/kernels/attention/blocks_body.h"
#include "backends/cpu/kernels/attention/blocks_encode_body.h"
#include "backends/cpu/kernels/attention/flash_body.h"
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/headwide_encode_body.h"
#include "backends/cpu/kernels/attention/headwide_rotate_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/plain_body.h"
#include "backends/cpu/kernels/attention/producers_body.h"

namespace kvasir::cpu {
namespace {

template <typename Vec, const ImageKernels& image>
const KeyProducer* key_producer(DType type) {
  static constexpr KeyProducer kRows[] = {
      plain_keys<Vec, float>(DType::f32),    plain_keys<Vec, F16>(DType::f16),
      plain_keys<Vec, BF16>(DType::bf16),    block_keys<Vec, Q8Codes>(DType::q8_0),
      block_keys<Vec, Q5Codes>(DType::q5_0), block_keys<Vec, Q4Codes>(DType::q4_0),
      head_wide_keys<Vec, 2>(DType::tbq2_h), head_wide_keys<Vec, 3>(DType::tbq3_h),
      head_wide_keys<Vec, 4>(DType::tbq4_h),
  };
  for (const KeyProducer& row : kRows)
    if (row.type == type) return &row;
  return image.keys(type);
}

template <typename Vec, const ImageKernels& image>
const ValueProducer* value_producer(DType type) {
  static constexpr ValueProducer kRows[] = {
      plain_values<Vec, float>(DType::f32),    plain_values<Vec, F16>(DType::f16),
      plain_values<Vec, BF16>(DType::bf16),    block_values<Vec, Q8Codes>(DType::q8_0),
      block_values<Vec, Q5Codes>(DType::q5_0), block_values<Vec, Q4Codes>(DType::q4_0),
      head_wide_values<Vec, 2>(DType::tbq2_h), head_wide_values<Vec, 3>(DType::tbq3_h),
      head_wide_values<Vec, 4>(DType::tbq4_h),
  };
  for (const ValueProducer& row : kRows)
    if (row.type == type) return &row;
  return image.values(type);
}

template <typename Vec>
void store_f16_row(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; i += Vec::kN) Vec::store(reinterpret_cast<F16*>(out + i), Vec::load(x + i));
}

template <typename Vec, const ImageKernels& image>
void encode_page(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                 const formats::TcqTable* tcq) {
  switch (type) {
    case DType::tbq2_h:
      return HeadWideEncoder<Vec, 2>::encode(side, head_dim, exact, region);
    case DType::tbq3_h:
      return HeadWideEncoder<Vec, 3>::encode(side, head_dim, exact, region);
    case DType::tbq4_h:
      return HeadWideEncoder<Vec, 4>::encode(side, head_dim, exact, region);
    case DType::q8_0:
      return BlockEncoder<Vec, Q8Codes>::encode(side, head_dim, exact, region);
    case DType::q5_0:
      return BlockEncoder<Vec, Q5Codes>::encode(side, head_dim, exact, region);
    case DType::q4_0:
      return BlockEncoder<Vec, Q4Codes>::encode(side, head_dim, exact, region);
    default:
      return image.encode_page(type, side, head_dim, exact, region, tcq);
  }
}

template <typename Vec, const ImageKernels& image>
constexpr AttentionKernels attention_kernels_of(Isa isa) {
  return {isa,
          key_producer<Vec, image>,
          value_producer<Vec, image>,
          flash_item<Vec>,
          flash_merge<Vec>,
          plain_item,
          store_f16_row<Vec>,
          rotate_head<Vec>,
          unrotate_head<Vec>,
          encode_page<Vec, image>};
}

}  // namespace
}  // namespace kvasir::cpu
