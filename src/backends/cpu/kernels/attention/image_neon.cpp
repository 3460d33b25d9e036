#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/simd/vec_neon.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_neon;
constexpr ImageKernels kImage_neon = shared_image_kernels<neon::Vec>();

}  // namespace kvasir::cpu
