#include "verify/compare.h"

#include <algorithm>
#include <cmath>

namespace kvasir::verify {
namespace {

double share(double figure, double bound) { return bound > 0 ? figure / bound : figure > 0 ? HUGE_VAL : 0; }

}  // namespace

Comparison compare(std::span<const float> got, std::span<const double> want, std::span<const double> bound) {
  Comparison c;
  c.n = std::min(got.size(), want.size());
  c.not_finite = std::max(got.size(), want.size()) - c.n;  // a missing element is as wrong as a NaN
  double error = 0, shares = 0, product = 0, got_square = 0, want_square = 0, worst = -1;
  for (size_t i = 0; i < c.n; ++i) {
    const double g = double(got[i]), w = want[i];
    if (!std::isfinite(g) || !std::isfinite(w)) {
      const bool same = (std::isnan(g) && std::isnan(w)) || g == w;
      c.not_finite += same ? 0 : 1;
      continue;
    }
    const double limit = bound.size() == 1 ? bound[0] : bound[i], off = std::fabs(g - w);
    c.max_diff = std::max(c.max_diff, off);
    c.over += !(off <= limit);
    if (share(off, limit) > worst) {
      worst = share(off, limit);
      c.figure = off;
      c.bound = limit;
    }
    error += off * off;
    if (limit > 0) shares += off / limit * (off / limit);
    product += g * w;
    got_square += g * g;
    want_square += w * w;
  }
  c.nmse = want_square > 0 ? error / want_square : error;
  const double norm = std::sqrt(got_square * want_square);
  c.cosine = norm > 0 ? std::max(0.0, 1 - product / norm) : got_square + want_square > 0 ? 1 : 0;
  c.rms_share = c.n > 0 ? std::sqrt(shares / double(c.n)) : 0;
  return c;
}

void add(Comparison& whole, const Comparison& part) {
  if (whole.n + whole.not_finite == 0) {
    whole = part;
    return;
  }
  if (share(part.figure, part.bound) > share(whole.figure, whole.bound)) {
    whole.figure = part.figure;
    whole.bound = part.bound;
  }
  const double n = double(whole.n + part.n);
  if (n > 0)
    whole.rms_share = std::sqrt((whole.rms_share * whole.rms_share * double(whole.n) +
                                 part.rms_share * part.rms_share * double(part.n)) /
                                n);
  whole.n += part.n;
  whole.over += part.over;
  whole.not_finite += part.not_finite;
  whole.max_diff = std::max(whole.max_diff, part.max_diff);
  whole.nmse = std::max(whole.nmse, part.nmse);
  whole.cosine = std::max(whole.cosine, part.cosine);
}

}  // namespace kvasir::verify
