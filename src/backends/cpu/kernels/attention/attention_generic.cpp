#include "backends/cpu/kernels/attention/isa_body.h"
#include "backends/cpu/kernels/simd/vec_generic.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_generic;
extern const AttentionKernels kAttention_generic;
constexpr AttentionKernels kAttention_generic =
    attention_kernels_of<generic::Vec, kImage_generic>(Isa::kGeneric);

}  // namespace kvasir::cpu
