// How the token after a row is drawn from its best candidates. The same arithmetic, operation by operation, on hosts
// and devices: the same logits, settings and random number give the same token everywhere.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define KVASIR_EVERYWHERE __host__ __device__
#else
#define KVASIR_EVERYWHERE
#endif

namespace kvasir::graph {

struct Choice {
  int32_t n_best = 1;  // candidates; 1: the best one, and nothing below matters
  float temperature = 1, top_p = 1, min_p = 0;
  uint64_t random = 0;  // uniform; decides among them
};

// a * b + c, rounded twice on hosts (-ffp-contract=off) and devices.
KVASIR_EVERYWHERE inline double multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(__dmul_rn(a, b), c);
#else
  return a * b + c;
#endif
}

// exp(x) for x <= 0, relative error below 1e-15; 0 below -700 and for what is no number. The C library's exp differs
// from one to the next in its last bit, and so would a choice.
KVASIR_EVERYWHERE inline double choice_exp(double x) {
  if (!(x > -700)) return 0;
  const double shifted = multiply_add(x, 1.4426950408889634, 0x1.8p52);  // rounds to an integer, in the low bits
  const double n = shifted - 0x1.8p52;
  double r = multiply_add(n, -0x1.62e42fefap-1, x);  // ln 2 in two parts; the first product is exact
  r = multiply_add(n, -0x1.cf79abc9e3b3ap-40, r);
  double p = 1.0 / 6227020800;  // Taylor's series: |r| <= 0.35
  const double terms[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                          1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,
                          1.0};
  for (const double term : terms) p = multiply_add(p, r, term);
  return p * __builtin_bit_cast(double, (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52);
}

// Weight of a candidate whose logit is `logit` where the best has `best`.
KVASIR_EVERYWHERE inline double choice_weight(float logit, float best, double temperature) {
  return choice_exp((double(logit) - best) / temperature);
}

// How many of n candidates, best first, are kept; own(i): choice_weight at temperature 1, `total` of all. Nucleus and
// min-p look at the model's own distribution; temperature flattens or sharpens what is left.
template <class Own>
KVASIR_EVERYWHERE int nucleus_size(const Choice& choice, int n, double total, const Own& own) {
  double kept = 0;
  for (int i = 0; i < n; ++i) {
    if (i > 0 && (kept >= double(choice.top_p) * total || own(i) < double(choice.min_p) * own(0))) return i;
    kept += own(i);
  }
  return n;
}

// Which of n candidates the random number takes; tempered(i): choice_weight at the choice's own temperature.
template <class Tempered>
KVASIR_EVERYWHERE int draw_one(const Choice& choice, int n, const Tempered& tempered) {
  double rest = 0;
  for (int i = 0; i < n; ++i) rest += tempered(i);
  rest *= double(choice.random >> 11) * 0x1p-53;
  for (int i = 0; i < n; ++i) {
    rest -= tempered(i);
    if (rest < 0) return i;
  }
  return n - 1;
}

// Which of n candidates, best first, is taken.
template <class Own, class Tempered>
KVASIR_EVERYWHERE int choose_candidate(const Choice& choice, int n, const Own& own, const Tempered& tempered) {
  double total = 0;
  for (int i = 0; i < n; ++i) total += own(i);
  return draw_one(choice, nucleus_size(choice, n, total, own), tempered);
}

}  // namespace kvasir::graph
