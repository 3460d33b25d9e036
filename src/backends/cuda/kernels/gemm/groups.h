// The product by warp groups (sm_90a).
#pragma once
#include "backends/cuda/kernels/gemm/gemm.h"

namespace kvasir::cuda {

// Weights of args.w that it reads as they are; others are expanded to f16 first.
bool groups_read(WeightForm form);
void gemm_groups(const Launch& how, const GemmArgs& args);

}  // namespace kvasir::cuda
