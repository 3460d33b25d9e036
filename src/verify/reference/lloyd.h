// Levels of least mean squared error (Lloyd-Max) for one coordinate of a uniformly random vector of norm
// sqrt(d) in d dimensions, and the error that a row of d values reaches with them and a least-squares scale.
#pragma once
#include <vector>

namespace kvasir::verify::reference {

struct Levels {
  std::vector<double> level;  // 2^bits, ascending
  double nmse = 0;            // of a row, its own least-squares scale included
};

// Precondition: d even, 4 or more; bits 1..6. Computed once a pair and kept.
const Levels& sphere_levels(int bits, int d);

}  // namespace kvasir::verify::reference
