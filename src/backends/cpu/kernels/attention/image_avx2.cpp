#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/simd/vec_avx2.h"

namespace kvasir::cpu {

extern const ImageKernels kImage_avx2;
constexpr ImageKernels kImage_avx2 = shared_image_kernels<avx2::Vec>();

}  // namespace kvasir::cpu
