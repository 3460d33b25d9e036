// Constants of the head-wide types as the kernels want them. Built once from formats/head_wide_levels.h by
// code of the baseline ISA; kernels only read them.
#pragma once
#include <cstdint>

#include "backends/cpu/kernels/attention/kv_page.h"

namespace kvasir::cpu {

// Arrays of 16 repeat with period 2^bits, so that bits above a code may hold anything.
struct HeadWideTable {
  alignas(64) float level[16];  // as formats/head_wide_levels.h has them, rising
  float midpoint[16];           // between level i and i + 1
  float step;                   // largest level / 127
  int8_t rounded[16];           // nearest(level / step): |level - step * rounded| <= step / 2
};

// bits 2, 3 or 4; head_dim 64, 128, 256 or 512.
const HeadWideTable& head_wide_table(int bits, int head_dim);

// formats::head_sign as sign bits: -0.0f where a value is negated, else 0.0f. [kMaxHeadDim]
const float* head_wide_signs(KvSide side);

// Bits of a head-wide type, 0 for any other type.
constexpr int head_wide_bits(DType type) {
  return type == DType::tbq2_h ? 2 : type == DType::tbq3_h ? 3 : type == DType::tbq4_h ? 4 : 0;
}

// Bits of a symbol of a trellis type, 0 for any other type.
constexpr int trellis_bits(DType type) {
  return type == DType::tbq2_ht ? 2 : type == DType::tbq3_ht ? 3 : type == DType::tbq4_ht ? 4 : 0;
}

}  // namespace kvasir::cpu
