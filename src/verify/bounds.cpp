#include "verify/bounds.h"

namespace kvasir::verify {
namespace {

// A rounded code is off by half a step at most, by step / sqrt(12) on average.
constexpr double kUniform = 0.28867513459481287;
// A step of f16 beside a value of 1 or more, relative to it.
constexpr double kHalfStep = 0x1p-10;
// Of two bf16 terms: the second is rounded at 2^-9 of what the first leaves, 2^-8.
constexpr double kTermsStep = 0x1p-16;

}  // namespace

Arithmetic exact_arithmetic(Kernel kernel) {
  if (kernel == Kernel::kHalves) return {kHalfStep, kHalfStep};
  if (kernel == Kernel::kTerms) return {kTermsStep, kTermsStep};
  return {};
}

Arithmetic arithmetic_of(DType type, Kernel kernel) {
  if (kernel == Kernel::kSingle) return {};
  if (kernel == Kernel::kTerms) {
    Arithmetic a = exact_arithmetic(kernel);
    if (type != DType::bf16) a.value_error = kTermsStep;  // a bf16 row is as it is
    return a;
  }
  if (kernel == Kernel::kHalves) {
    Arithmetic a = exact_arithmetic(kernel);
    // A code's level and its product with the scale are rounded; an f16 row is as it is.
    if (type != DType::f16) a.value_error = kHalfStep;
    return a;
  }
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return {};
    case DType::tbq2_h:
    case DType::tbq3_h:
    case DType::tbq4_h:
    case DType::tbq2_ht:
    case DType::tbq3_ht:
    case DType::tbq4_ht:
    case DType::tbq3_tcq:
    case DType::tbq3_0:
    case DType::tbq4_0:
    case DType::q4_polar:
      return {1.0 / 127, 1.0 / 254, 127};  // 8-bit queries, levels and weights
    case DType::qjl1_256:
      return {1.0 / 127, 0};  // 8 bits of the query's sketch
    default:
      return {1.0 / 32767, 1.0 / 32767};  // 16-bit queries and weights
  }
}

double score_deviation(const Arithmetic& keys, const ScoreTerms& t) {
  return kUniform * keys.query_step * t.query_top * t.key_norm * std::fabs(t.scale);
}

double score_bound(const Arithmetic& keys, bool rotated, const ScoreTerms& t) {
  double bound = sum_error(t.head_dim + 4.0) * t.magnitude + 8 * kUnit * std::fabs(t.score);
  bound += kDeviations * score_deviation(keys, t);
  // log2(d) butterflies, a sign and a factor, each rounded relative to the vector's norm.
  const double norms = std::fabs(t.scale) * t.query_norm * t.key_norm;
  if (rotated) bound += (std::log2(double(t.head_dim)) + 2) * kUnit * norms;
  // Independent roundings of the key's values, in whatever basis they are multiplied.
  if (keys.value_error > 0)
    bound += keys.value_error * (t.magnitude + kDeviations * norms / std::sqrt(double(t.head_dim)));
  // Codes times a scale of their own are summed exactly, block by block: their products are not in
  // `magnitude`'s order.
  if (keys.query_step > 0) bound += sum_error(16) * norms;
  return bound;
}

double weight_error(const MixTerms& t) {
  // Exponents and the exponential are rounded (2 ulp).
  return std::expm1(2 * (t.score_error + 4 * kUnit * (t.top_score + 2)));
}

double mix_bound(const Arithmetic& values, bool rotated, const MixTerms& t) {
  double bound = t.spread * weight_error(t);
  const double wide = std::max(t.spread, t.spread_norm);
  bound += (sum_error(t.n_keys + 8.0) + (rotated ? (std::log2(double(t.head_dim)) + 2) * kUnit : 0)) * wide;
  bound += values.value_error * wide;
  // Weight and scale are rounded to codes of the largest beside them, and so is their product: 1/2 step each
  // on average, of values of like magnitude (a factor 2 between the largest scale and a row's own).
  bound += kDeviations * 0.5 * 2 * values.weight_step * t.top_weight * std::sqrt(t.energy);
  return bound;
}

double product_bound(const ProductTerms& t) {
  return sum_error(t.n + 4) * t.magnitude + kDeviations * kUniform * std::sqrt(t.rounded_energy) +
         kDeviations * kUniform * kHalfStep * std::sqrt(2 * t.half_energy);
}

double activation_step(DType type) {
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return 0;
    default:
      return 1.0 / 127;
  }
}

}  // namespace kvasir::verify
