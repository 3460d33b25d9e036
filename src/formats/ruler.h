// The ruler: how far a storage type is from the best code of its rate. No code of R bits a value has a mean
// squared error below D(R) = 2^-2R on Gaussian values, so a type of rate R and error D loses
// R - log2(1 / D) / 2 bits, its scales and other metadata counted in R.
#pragma once
#include "formats/format.h"

namespace kvasir::formats {

struct Ruler {
  double bits_per_value;
  double nmse;       // of the scalar codec on 2^20 Gaussian values, fixed seed, rotation included
  double theory;     // what it should be
  double bits_lost;  // NaN for a type that is exact here (f32)
};

// Precondition: format.takes(head_dim).
Ruler ruler(const Format& format, int head_dim);

}  // namespace kvasir::formats
