#include "backends/cpu/kernels/attention/isa_body.h"
#include "backends/cpu/kernels/simd/vec_neon.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_neon;
extern const AttentionKernels kAttention_neon;
constexpr AttentionKernels kAttention_neon = attention_kernels_of<neon::Vec, kImage_neon>(Isa::kNeon);

}  // namespace kvasir::cpu
