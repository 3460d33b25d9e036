// Storage types by id. Values are GGUF's own type ids where GGUF has one; 44-50 and 64-69 are ours (docs/formats.md).
#pragma once
#include <cstdint>

namespace kvasir {

enum class DType : uint32_t {
  f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8,
  q2_k = 10, q3_k = 11, q4_k = 12, q5_k = 13, q6_k = 14,
  iq4_nl = 20, iq4_xs = 23, bf16 = 30,
  tbq3_0 = 44, tbq4_0 = 45, qjl1_256 = 46, q4_polar = 47, tbq3_tcq = 48,
  tbq2_h = 64, tbq3_h = 65, tbq4_h = 66, tbq2_ht = 67, tbq3_ht = 68, tbq4_ht = 69,
};

}  // namespace kvasir
