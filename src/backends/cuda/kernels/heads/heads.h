// Heads of a few rows (decode): what run_heads does, as a block a head and a thread a value. Its code is
// small: in a step of one row fetching instructions costs more than the work. Bound: one read and one write
// of each head.
#pragma once
#include "backends/cuda/kernels/kv_append/kv_append.h"

namespace kvasir::cuda {

constexpr bool few_form(KvForm form) {
  return basis_of(form) == KvBasis::kModel || basis_of(form) == KvBasis::kHeadWide;
}
bool has_few_heads(const HeadArgs& args);
// Leaves full pages unencoded.
void run_few_heads(const Launch& how, const HeadArgs& args, const StepView& step, int n_rows);

}  // namespace kvasir::cuda
