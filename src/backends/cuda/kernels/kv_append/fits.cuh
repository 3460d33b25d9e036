// Can a row that was stored as f16 be encoded when its page is full?
#pragma once
#include "backends/cuda/kernels/kv_forms/codec.cuh"

namespace kvasir::cuda {

// Rows below this fit every type: the largest scale any makes of 128 such values is 88 times it.
inline constexpr float kAlwaysFits = 512.0f;

// Asked only where a value is larger, by a warp. `codes`: d bytes of shared memory. Not inlined: a step
// without such rows does not load this code.
static __device__ __noinline__ bool stored_row_fits(KvForm form, const __half* row, int d, int lane,
                                                    uint8_t* codes) {
  return encode_quick(form, Warp{lane}, reinterpret_cast<const uint16_t*>(row), d, codes, RowPlace{});
}

}  // namespace kvasir::cuda
