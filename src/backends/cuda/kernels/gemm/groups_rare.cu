// Prompt products of the weight types that fewer files have: two translation units compile side by side.
#include "backends/cuda/kernels/gemm/groups.cuh"

namespace kvasir::cuda {

void gemm_groups_rare(const Launch& how, const GemmArgs& args, const GemmPlan& plan) {
  switch (args.parts[0].w.form) {
    case WeightForm::kBf16:
      return run<WeightForm::kBf16>(how, args, plan);
    case WeightForm::kQ4M:
      return run<WeightForm::kQ4M>(how, args, plan);
    case WeightForm::kQ5:
      return run<WeightForm::kQ5>(how, args, plan);
    case WeightForm::kQ5M:
      return run<WeightForm::kQ5M>(how, args, plan);
    case WeightForm::kQ5K:
      return run<WeightForm::kQ5K>(how, args, plan);
    case WeightForm::kIq4Nl:
      return run<WeightForm::kIq4Nl>(how, args, plan);
    case WeightForm::kIq4Xs:
      return run<WeightForm::kIq4Xs>(how, args, plan);
    default:
      return;  // groups_read() is false of it
  }
}

}  // namespace kvasir::cuda
