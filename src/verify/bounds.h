// What a correct kernel may be off by, from its arithmetic alone. u = 2^-24; a sum of n rounded terms is off
// by at most min(n, 6 sqrt(n)) u times the sum of magnitudes (Higham and Mary, "A new approach to
// probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019: 6 standard deviations).
#pragma once
#include <algorithm>
#include <cmath>

#include "tensor/dtype.h"

namespace kvasir::verify {

inline constexpr double kUnit = 0x1p-24;
inline constexpr double kDeviations = 6;

inline double sum_error(double n) { return std::min(n, kDeviations * std::sqrt(n)) * kUnit; }

// How the kernels of one KV type multiply, as the op's header states it. Steps are what one code stands for,
// relative to the largest magnitude it is scaled by; 0: single-precision floats.
struct Arithmetic {
  double query_step = 0;   // keys: of the query's codes
  double weight_step = 0;  // values: of the attention weights' codes
  int level_codes = 0;     // levels are rounded to multiples of the largest over this; 0: they are not
  double value_error = 0;  // of each value as it is multiplied, relative to itself
  // Steps this wide are noise that would hide a fault: the reference rounds query, levels and weights itself.
  bool coarse() const { return level_codes > 0; }
};
// How a kernel works: every type in single precision (without flash attention), integer codes (CPU), tiles of
// f16 on matrix units (CUDA), or there f32 and bf16 caches with everything in two bf16 terms.
enum class Kernel { kSingle, kCodes, kHalves, kTerms };
Arithmetic arithmetic_of(DType type, Kernel kernel);
// Of a row that the cache keeps as f16 although the type encodes.
Arithmetic exact_arithmetic(Kernel kernel);

// Of one raw score  scale * sum_i q_i k_i.
struct ScoreTerms {
  int head_dim = 0;
  double magnitude = 0;   // |scale| sum |q_i k_i|
  double query_top = 0;   // max |q_i| in the basis the keys are kept in
  double query_norm = 0;  // |q|
  double key_norm = 0;    // |k|
  double scale = 1;
  double score = 0;
};
double score_bound(const Arithmetic& keys, bool rotated, const ScoreTerms& t);
// Standard deviation of the part that rounding the query makes, 0 when it is not rounded.
double score_deviation(const Arithmetic& keys, const ScoreTerms& t);

// Of one element of  sum_j p_j v_j,  p the softmax of scores each off by at most `score_error`.
struct MixTerms {
  int n_keys = 0, head_dim = 0;
  double score_error = 0;
  double top_score = 0;  // largest |score|: exponents are rounded
  double top_weight = 0;
  double spread = 0;       // sum_j p_j |v_j|
  double spread_norm = 0;  // root mean square of `spread` over the head
  double energy = 0;       // sum_j v_j^2
};
double mix_bound(const Arithmetic& values, bool rotated, const MixTerms& t);
// What a weight may be off by, relative to itself: it moves with its score, and so does the sum that divides it.
double weight_error(const MixTerms& t);

// Of one element of a product with a matrix whose weights are exact: y = sum_k w_k x_k, where x may be
// rounded to codes of `step` times the largest magnitude of its block of 32 (0: floats).
struct ProductTerms {
  double n = 0;
  double magnitude = 0;       // sum |w_k x_k|
  double rounded_energy = 0;  // sum over blocks of (max |x| step)^2 sum w_k^2
  double half_energy = 0;     // sum (w_k x_k)^2 when both are rounded to f16
};
double product_bound(const ProductTerms& t);
// Step of activations for weights of `type` (matmul.h: absmax / 127), 0 for float weights.
double activation_step(DType type);

}  // namespace kvasir::verify
