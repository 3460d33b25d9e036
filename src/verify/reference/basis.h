// The rotated basis of the head-wide types, recomputed in double precision from its description:
//   r = H_d (s . x) / sqrt(d), d a power of two, H_d the Walsh-Hadamard transform in natural order.
// Sign i is minus when bit i % 64 of output i / 64 of splitmix64 is set; its state starts at "kvasir", then a
// byte of 64, plus 0 for keys and 1 for values.
#pragma once
#include <cstdint>
#include <vector>

namespace kvasir::verify::reference {

enum class Side : uint8_t { kKeys, kValues };

uint64_t splitmix64(uint64_t& state);
// +1 or -1 for each value of the longest head (512); a shorter one uses the first.
const std::vector<double>& head_signs(Side side);
// In place, n a power of two: x becomes H_n x / sqrt(n), which is its own inverse.
void hadamard(double* x, int n);
void rotate(Side side, double* x, int d);
void unrotate(Side side, double* r, int d);

}  // namespace kvasir::verify::reference
