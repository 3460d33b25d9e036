// Attention of many rows on warp-group products (sm_90a): head sizes 256 and 512.
#pragma once
#include "backends/cuda/kernels/attention/attention.h"

namespace kvasir::cuda {

// Types it loads, and a device and build that have the instructions.
bool has_prompt(const KvView& kv);
// Blocks before the keys are shared out.
int prompt_kernel_blocks(const KvView& kv, int n_head, int n_rows);
void attend_prompt(const Launch& how, const AttentionArgs& args, const StepView& step);

}  // namespace kvasir::cuda
