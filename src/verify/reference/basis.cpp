#include "verify/reference/basis.h"

#include <cmath>

#include "base/wide.h"

namespace kvasir::verify::reference {

uint64_t splitmix64(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

namespace {

constexpr size_t kLongestHead = 512;

std::vector<double> make_signs(Side side) {
  uint64_t state = 0;
  for (const char letter : {'k', 'v', 'a', 's', 'i', 'r', '\0'}) state = state << 8 | uint64_t(letter);
  state = (state << 8 | 64) + (side == Side::kValues ? 1 : 0);
  std::vector<double> signs;
  while (signs.size() < kLongestHead) {
    const uint64_t word = splitmix64(state);
    for (int bit = 0; bit < 64; ++bit) signs.push_back(word >> bit & 1 ? -1.0 : 1.0);
  }
  return signs;
}

}  // namespace

const std::vector<double>& head_signs(Side side) {
  static const std::vector<double> keys = make_signs(Side::kKeys), values = make_signs(Side::kValues);
  return side == Side::kKeys ? keys : values;
}

KVASIR_WIDE void hadamard(double* x, int n) {
  // H_2m = [H_m H_m; H_m -H_m]: of each pair of halves their sum and difference, halves growing from 1.
  for (int half = 1; half < n; half *= 2)
    for (int begin = 0; begin < n; begin += 2 * half)
      for (int i = begin; i < begin + half; ++i) {
        const double a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  const double norm = 1 / std::sqrt(double(n));
  for (int i = 0; i < n; ++i) x[i] *= norm;
}

void rotate(Side side, double* x, int d) {
  const std::vector<double>& signs = head_signs(side);
  for (int i = 0; i < d; ++i) x[i] *= signs[size_t(i)];
  hadamard(x, d);
}

void unrotate(Side side, double* r, int d) {
  const std::vector<double>& signs = head_signs(side);
  hadamard(r, d);
  for (int i = 0; i < d; ++i) r[i] *= signs[size_t(i)];
}

}  // namespace kvasir::verify::reference
