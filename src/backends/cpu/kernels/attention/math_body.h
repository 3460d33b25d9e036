// The few functions of attention over a vector type. Included by each ISA file, into an unnamed namespace.
#pragma once
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// 2^x for x <= 0, within 2 ulp; exactly 1 at 0 and exactly 0 below -126 (so masked lanes, at -inf, add
// nothing). Minimax polynomial of degree 6 on [-1/2, 1/2], relative error 2e-9 before rounding.
template <typename Vec>
inline typename Vec::F exp2(typename Vec::F x) {
  const auto lowest = Vec::set1(-126.0f);
  const auto n = Vec::round(Vec::max(lowest, x));
  const auto r = Vec::sub(Vec::max(lowest, x), n);
  auto p = Vec::set1(1.535336261e-4f);
  p = Vec::fma(p, r, Vec::set1(1.339887446e-3f));
  p = Vec::fma(p, r, Vec::set1(9.618437355e-3f));
  p = Vec::fma(p, r, Vec::set1(5.550332471e-2f));
  p = Vec::fma(p, r, Vec::set1(2.402264791e-1f));
  p = Vec::fma(p, r, Vec::set1(mutated(Mutation::kExponentOff) ? 6.938e-1f : 6.931472029e-1f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  return Vec::if_less(x, lowest, Vec::zero(), Vec::scale2(p, n));
}

// cap * tanh(x / cap).
template <typename Vec>
inline typename Vec::F softcap(typename Vec::F x, float cap) {
  const auto e = exp2<Vec>(Vec::mul(Vec::abs(x), Vec::set1(-2.0f * 1.44269504088896341f / cap)));
  const auto one = Vec::set1(1.0f);
  const auto t = Vec::mul(Vec::set1(cap), Vec::div(Vec::sub(one, e), Vec::add(one, e)));
  return Vec::if_less(x, Vec::zero(), Vec::sub(Vec::zero(), t), t);
}

// out = x / sum; zero when nothing was visible.
template <typename Vec>
inline void scale_out(const float* x, float sum, int n, float* out) {
  const auto inverse = Vec::set1(sum > 0 ? 1.0f / sum : sum == sum ? 0.0f : sum);
  for (int i = 0; i < n; i += Vec::kN) Vec::store(out + i, Vec::mul(Vec::load(x + i), inverse));
}

}  // namespace
}  // namespace kvasir::cpu
