// The one home of comparison: a result against what it should be, each element within a bound that was
// computed before the result was looked at (bounds.h).
#pragma once
#include <cstddef>
#include <span>

namespace kvasir::verify {

struct Comparison {
  size_t n = 0;
  // At the element that uses the largest share of its bound: |got - want|, and the bound.
  double figure = 0, bound = 0;
  double max_diff = 0;    // largest |got - want| anywhere
  double nmse = 0;        // sum (got - want)^2 / sum want^2
  double cosine = 0;      // distance: 1 - cos of the two as vectors
  double rms_share = 0;   // root mean square of |got - want| / bound
  size_t over = 0;        // elements beyond their bound
  size_t not_finite = 0;  // places where exactly one side is NaN or infinite, or infinities differ

  // Bounds are six standard deviations of honest rounding (bounds.h), so many errors together must stay
  // within two: a small error in one constant moves all of them a little.
  static constexpr double kRmsShare = 1.0 / 3;
  static constexpr size_t kEnough = 64;
  bool within() const {
    return n > 0 && over == 0 && not_finite == 0 && (n < kEnough || rms_share <= kRmsShare);
  }
};

// `bound`: of each element, or one for all; 0 asks for equality. A NaN must meet a NaN and an infinity the
// same infinity; such places take no other part.
Comparison compare(std::span<const float> got, std::span<const double> want, std::span<const double> bound);

// Sums `part` into `whole`, keeping the worst figures.
void add(Comparison& whole, const Comparison& part);

}  // namespace kvasir::verify
