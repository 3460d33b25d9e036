#include "backends/cuda/kernels/weights/weights.h"
#include "base/error.h"

namespace kvasir::cuda {

void refuse_form(const char* kernel, WeightForm form) {
  fail(ErrorCode::kFailed,
       "cuda: kernel {}: required: weights of form {} (WeightForm); supported: others; missing: a kernel of "
       "it",
       kernel, int(form));
}

}  // namespace kvasir::cuda
