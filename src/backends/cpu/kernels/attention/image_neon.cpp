#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/striped_image_body.h"
#include "backends/cpu/kernels/attention/trellis_image_body.h"
#include "backends/cpu/kernels/simd/vec_neon.h"

namespace kvasir::cpu {

namespace {

template <DType type>
using Trellis = std::conditional_t<type == DType::tbq3_tcq, TcqSources<neon::Vec>,
                                   typename StripedSources<neon::Vec, TableLevels>::template Of<type>>;

}  // namespace

extern const ImageKernels kImage_neon;
constexpr ImageKernels kImage_neon = image_kernels_of<neon::Vec, Trellis>();

}  // namespace kvasir::cpu
