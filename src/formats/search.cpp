#define KVASIR_SEARCH_NAMESPACE search_generic_body
#include "base/cpu_features.h"
#include "formats/search_body.h"
#include "formats/search_isa.h"

namespace kvasir::formats {

const SearchFunctions& search_generic() { return search_generic_body::kFunctions; }

const SearchFunctions& best_search() {
  static const SearchFunctions& chosen = []() -> const SearchFunctions& {
#if defined(__x86_64__)
    if (cpu_supports(Isa::kAvx512)) return search_avx512();
    if (cpu_supports(Isa::kAvx2)) return search_avx2();
#endif
    return search_generic();
  }();
  return chosen;
}

void round_levels(const Grid& grid, const float* x, float inverse, int n, float* level) {
  best_search().round_levels(grid, x, inverse, n, level);
}
void round_levels_min(int n_levels, const float* x, float inverse, float m, int n, float* level) {
  best_search().round_levels_min(n_levels, x, inverse, m, n, level);
}
float fit_symmetric(const Grid& grid, const Trials& trials, const float* x, const float* w, int n) {
  return best_search().fit_symmetric(grid, trials, x, w, n);
}
ScaleMin fit_scale_min(int n_levels, const Trials& trials, bool min_not_negative, const float* x,
                       const float* w, int n) {
  return best_search().fit_scale_min(n_levels, trials, min_not_negative, x, w, n);
}
void fit_superblock(const SymmetricSpec& spec, const float* x, const float* w, SymmetricSuperblock& out) {
  best_search().fit_symmetric_superblock(spec, x, w, out);
}
void fit_superblock(const ScaleMinSpec& spec, const float* x, const float* w, ScaleMinSuperblock& out) {
  best_search().fit_min_superblock(spec, x, w, out);
}

void fit_weights(const float* x, const float* importance, float sigma2_share, int n, float* w) {
  float largest = 0;
  if (importance)
    for (int i = 0; i < n; ++i)
      if (importance[i] > largest && std::isfinite(importance[i])) largest = importance[i];
  if (largest <= 0) {
    for (int i = 0; i < n; ++i) w[i] = 1;
    return;
  }
  double squares = 0;
  for (int i = 0; i < n; ++i) squares += double(x[i]) * x[i];
  const float sigma2 = sigma2_share * float(squares / n);
  const float unit = 1.0f / std::sqrt(sigma2 > 0 ? sigma2 : 1.0f);
  for (int i = 0; i < n; ++i) {
    const float share = importance[i] > 0 && std::isfinite(importance[i]) ? importance[i] / largest : 0.0f;
    // The floor keeps columns nobody measured from becoming arbitrary.
    w[i] = (share + 1e-5f) * (sigma2_share > 0 ? unit * std::sqrt(sigma2 + x[i] * x[i]) : 1.0f);
  }
}

}  // namespace kvasir::formats
