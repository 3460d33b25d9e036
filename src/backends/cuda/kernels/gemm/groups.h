// The product by warp groups (sm_90a).
#pragma once
#include "backends/cuda/kernels/gemm/gemm.h"

namespace kvasir::cuda {

// Weights that it reads as they are; others are expanded to f16 first.
bool groups_read(WeightForm form);
// Parts are of one form.
void gemm_groups(const Launch& how, const GemmArgs& args);
void gemm_groups_rare(const Launch& how, const GemmArgs& args, const GemmPlan& plan);  // groups_rare.cu

}  // namespace kvasir::cuda
