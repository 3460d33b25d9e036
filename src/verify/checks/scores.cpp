// scores: q . k of every key type, read through values that are unit vectors: the output of attention is then
// the weight of each key, and its logarithm the score up to one constant a row.
#include <cmath>

#include "verify/bounds.h"
#include "verify/checks/attention_case.h"
#include "verify/checks/context.h"

namespace kvasir::verify {
namespace {

RigSpec score_spec(const backends::Caps& caps, DType k, int head_dim, bool flash) {
  RigSpec spec;
  spec.k = k;
  // Ones and zeros are exact in every float type; the kernel in question has to be the one that runs.
  spec.v = flash && outranges_flash(caps, DType::f32) && !outranges_flash(caps, k) ? DType::f16 : DType::f32;
  spec.head_dim = head_dim;
  spec.flash = flash;
  spec.lengths = {150};  // two whole pages, one open
  spec.n_kv = (150 + head_dim - 1) / head_dim;
  spec.n_head = 2 * spec.n_kv;
  spec.gain = 2;
  spec.one_hot = true;
  spec.max_rows = 96;
  spec.seed = 0x5c0 + uint64_t(k) * 7 + uint64_t(head_dim);
  return spec;
}

}  // namespace

void check_scores(Context& context) {
  for (const DType k : context.kv_types(formats::kKeys))
    for (const int head_dim : context.head_dims())
      for (const bool flash : {true, false}) {
        const Label label{"scores", std::string(type_name(k)) + (flash ? "" : " without flash attention"),
                          head_dim, std::string(type_name(k)), "f32"};
        if (!formats::require(k).takes(head_dim)) {
          not_applicable(context, label,
                         fmt::format("head size {} is refused (dispatch checks that)", head_dim));
          continue;
        }
        double noise = NAN;
        const bool coarse =
            flash && context.caps().name == "cpu" && arithmetic_of(k, Kernel::kCodes).coarse();
        check(context, label, [&](decide::CheckResult& result) {
          Rig rig(context.backend(), score_spec(context.caps(), k, head_dim, flash));
          result.variant = rig.variant();
          rig.run_all();
          conclude(result, compare_scores(rig, interesting_rows(rig.spec(), 8), context.workers()));
          if (coarse) noise = score_noise(rig, interesting_rows(rig.spec(), 8), context.workers());
        });
        if (!coarse) continue;
        // What rounding query and levels adds may be a fifth of the code's own error: 4 % more energy.
        check(context, {"scores", label.name + ", noise of the kernel", head_dim, label.k, label.v},
              [&](decide::CheckResult& result) {
                result.variant = context.results.back().variant;
                const double own = std::sqrt(formats::require(k).theory(head_dim));
                conclude(result, noise, own / 5,
                         fmt::format("relative noise {:.4g}, the code's own error is {:.4g}", noise, own));
              });
      }
}

}  // namespace kvasir::verify
