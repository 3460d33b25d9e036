#include "backends/cpu/kernels/elementwise/elementwise.h"
#include "backends/cpu/kernels/elementwise/elementwise_body.h"

namespace kvasir::cpu {

extern const ElementwiseKernels kElementwise_avx512;
const ElementwiseKernels kElementwise_avx512{"avx512", rms_norm, rope_head, gelu_mul, softcap, scale_add};

}  // namespace kvasir::cpu
