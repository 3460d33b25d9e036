#include "backends/cpu/kernels/elementwise/elementwise.h"

namespace kvasir::cpu {

#define KVASIR_ELEMENTWISE(name, isa) extern const ElementwiseKernels kElementwise_##name;
#include "backends/cpu/kernels/elementwise/variants.def"
#undef KVASIR_ELEMENTWISE

const ElementwiseKernels& elementwise_kernels(Isa isa) {
#define KVASIR_ELEMENTWISE(name, row_isa) \
  if (row_isa <= isa && cpu_supports(row_isa)) return kElementwise_##name;
#include "backends/cpu/kernels/elementwise/variants.def"
#undef KVASIR_ELEMENTWISE
  return kElementwise_generic;
}

}  // namespace kvasir::cpu
