#include "backends/cpu/kernels/attention/isa_body.h"
#include "backends/cpu/kernels/simd/vec_avx512.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_avx512;
extern const AttentionKernels kAttention_avx512;
constexpr AttentionKernels kAttention_avx512 = attention_kernels_of<avx512::Vec, kImage_avx512>(Isa::kAvx512);

}  // namespace kvasir::cpu
