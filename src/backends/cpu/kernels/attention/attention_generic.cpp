#include "backends/cpu/kernels/attention/isa_body.h"
#include "backends/cpu/kernels/simd/vec_generic.h"

namespace kvasir::cpu {

extern const AttentionKernels kAttention_generic;
constexpr AttentionKernels kAttention_generic = attention_kernels_of<generic::Vec>(Isa::kGeneric);

}  // namespace kvasir::cpu
