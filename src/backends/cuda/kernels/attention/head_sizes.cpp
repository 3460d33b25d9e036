#include "backends/cuda/kernels/attention/head_sizes.h"

#include "base/error.h"

namespace kvasir::cuda {

void refuse_head_size(const char* kernel, int head_dim, const int* made_for, int n) {
  std::string sizes;
  for (int i = 0; i < n; ++i) sizes += fmt::format("{}{}", i ? ", " : "", made_for[i]);
  fail(ErrorCode::kRefused,
       "cuda: kernel {}: required: head size {}; supported: {}; missing: a kernel of that size", kernel,
       head_dim, sizes);
}

void refuse_cache(const char* kernel, const KvView& kv) {
  fail(ErrorCode::kRefused,
       "cuda: kernel {}: required: cache types {} and {} (KvForm); supported: fewer; missing: a kernel of "
       "these",
       kernel, int(kv.k_form), int(kv.v_form));
}

}  // namespace kvasir::cuda
