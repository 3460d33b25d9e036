#include "backends/cpu/kernels/attention/image_body.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "backends/cpu/kernels/attention/striped_image_body.h"
#include "backends/cpu/kernels/attention/trellis_image_body.h"
#include "backends/cpu/kernels/simd/vec_avx2.h"

namespace kvasir::cpu {

namespace {

template <DType type>
using Trellis = std::conditional_t<type == DType::tbq3_tcq, TcqSources<avx2::Vec>,
                                   typename StripedSources<avx2::Vec, TableLevels>::template Of<type>>;

}  // namespace

extern const ImageKernels kImage_avx2;
constexpr ImageKernels kImage_avx2 = image_kernels_of<avx2::Vec, Trellis>();

}  // namespace kvasir::cpu
