// One kernel a head size: which of them a launch takes. A size that none is made for is refused by name.
#pragma once
#include <type_traits>

#include "backends/cuda/kernels/args.h"

namespace kvasir::cuda {

[[noreturn]] void refuse_head_size(const char* kernel, int head_dim, const int* made_for, int n);
[[noreturn]] void refuse_cache(const char* kernel, const KvView& kv);

// Calls run(std::integral_constant<int, D>) for the D of `Sizes` that is `head_dim`.
template <int... Sizes, typename Run>
void with_head_size(const char* kernel, int head_dim, const Run& run) {
  const bool done = ((head_dim == Sizes ? (run(std::integral_constant<int, Sizes>{}), true) : false) || ...);
  constexpr int kMadeFor[] = {Sizes...};
  if (!done) refuse_head_size(kernel, head_dim, kMadeFor, int(sizeof...(Sizes)));
}

}  // namespace kvasir::cuda
