// How prompt products by warp groups are shared out (groups.cuh).
#include "backends/cuda/kernels/gemm/groups.cuh"

namespace kvasir::cuda {
namespace {

// Microseconds, measured: a step of a tile of so many rows (of types whose codes take few instructions, and
// of the others), its end, and adding up a tile that is cut in n: the first cut, each cut, and cuts at odd
// places.
struct Costs {
  int rows;
  float light, heavy, store, share, each, uneven;
};
constexpr Costs kCosts[] = {{256, 0.805f, 0.83f, 3.7f, 2.9f, 2.3f, 3},
                            {128, 0.42f, 0.51f, 2.7f, 2.4f, 0.75f, 2.3f},
                            {64, 0.319f, 0.43f, 1.2f, 0.9f, 0.55f, 1}};

// When every cluster takes `each` steps.
float cost(const Costs& c, bool heavy, int tiles, int steps, int each) {
  each = std::min(each, tiles * steps);
  const float ends = each < steps ? 1 : float((each + steps - 1) / steps),
              time = float(each) * (heavy ? c.heavy : c.light) + ends * c.store;
  if (each % steps == 0) return time;
  const int cuts = each >= steps ? 1 : (steps - 1) / each;
  return time + c.share + float(cuts) * c.each + (steps % each == 0 ? 0 : c.uneven);
}
GemmPlan plan_of(const GemmArgs& args) {
  if (args.plan.rows > 0) return args.plan;
  const int steps = args.n_in / kDepth, clusters = multiprocessors() / kRanks;
  const WeightForm form = args.parts[0].w.form;
  const bool heavy = form != WeightForm::kF16 && form != WeightForm::kQ8 && form != WeightForm::kQ4;
  GemmPlan best;
  float least = 0;
  for (const Costs& c : kCosts) {
    if (args.n_rows <= c.rows / 2 && c.rows > 64) continue;
    const int tiles = tiles_of(args, c.rows);
    const auto consider = [&](int each) {
      const float time = cost(c, heavy, tiles, steps, each);
      if (best.rows == 0 || time < least) best = {c.rows, each}, least = time;
    };
    const int waves = (tiles + clusters - 1) / clusters;
    consider(waves * steps);
    consider(int((int64_t(tiles) * steps + clusters - 1) / clusters));
    for (int n = 2; n <= 8 && tiles * n <= clusters; ++n)
      if (steps % n == 0) consider(steps / n);
  }
  return best;
}

}  // namespace

bool gemm_by_groups(int n_in, bool portable) {
#ifdef KVASIR_SM_90A
  return !portable && n_in % kDepth == 0 && has_warp_group_products();
#else
  return n_in < 0 && portable;
#endif
}
bool groups_read(WeightForm form) { return reads_form(form); }
size_t gemm_share_bytes() { return size_t(kFlagBytes + multiprocessors() * kShareBytes); }

void gemm_groups(const Launch& how, const GemmArgs& args) {
  const GemmPlan plan = plan_of(args);
  switch (args.parts[0].w.form) {
    case WeightForm::kF16:
      return run<WeightForm::kF16>(how, args, plan);
    case WeightForm::kQ8:
      return run<WeightForm::kQ8>(how, args, plan);
    case WeightForm::kQ4:
      return run<WeightForm::kQ4>(how, args, plan);
    case WeightForm::kQ4K:
      return run<WeightForm::kQ4K>(how, args, plan);
    case WeightForm::kQ6K:
      return run<WeightForm::kQ6K>(how, args, plan);
    default:
      return gemm_groups_rare(how, args, plan);
  }
}

}  // namespace kvasir::cuda
