#include "backends/cpu/kernels/attention/isa_body.h"
#include "backends/cpu/kernels/simd/vec_avx2.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_avx2;
extern const AttentionKernels kAttention_avx2;
constexpr AttentionKernels kAttention_avx2 = attention_kernels_of<avx2::Vec, kImage_avx2>(Isa::kAvx2);

}  // namespace kvasir::cpu
