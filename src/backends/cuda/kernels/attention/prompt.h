// Attention of many rows on warp-group products (sm_90a): head sizes 256 and 512.
#pragma once
#include "backends/cuda/kernels/attention/attention.h"

namespace kvasir::cuda {

// Types it loads, and a device and build that have the instructions.
bool has_prompt(const KvView& kv);
// Blocks before the keys are shared out.
int prompt_kernel_blocks(const KvView& kv, int n_head, int n_rows);
// Expands pages and attends to them, as many as args.expanded holds at a time; leaves parts. `more`: asked
// for launches after the first.
void attend_prompt(const Launch& how, const AttentionArgs& args, const StepView& step,
                   const std::function<Launch()>& more);
// Merges what attend_prompt() left.
void merge_rows(const Launch& how, const AttentionArgs& args);
// Tiles of pages [to.first, to.first + n_pages).
void expand_pages(const Launch& how, const KvView& kv, const StepView& step, const PageTiles& to,
                  int n_pages);

}  // namespace kvasir::cuda
