#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/simd/vec_generic.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_generic;
constexpr ImageKernels kImage_generic = image_kernels_of<generic::Vec, SharedSource>();

}  // namespace kvasir::cpu
