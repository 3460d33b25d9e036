// Data for the checks: deterministic, the same on every machine.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "verify/reference/basis.h"

namespace kvasir::verify::reference {

// Unit Gaussians: Box-Muller over splitmix64 fills a pool once, and a seed says where in it to start. Far
// longer than what one check draws.
class Gaussian {
 public:
  explicit Gaussian(uint64_t seed) : at_(size_t(splitmix64(seed)) % kPool) {}
  double next() {
    const double x = pool()[at_];
    at_ = (at_ + 1) % kPool;
    return x;
  }
  std::vector<float> vector(size_t n, double sigma = 1) {
    std::vector<float> out(n);
    for (size_t done = 0; done < n;) {
      const size_t run = std::min(n - done, kPool - at_);
      const float* from = pool().data() + at_;
      float* to = out.data() + done;
      for (size_t i = 0; i < run; ++i) to[i] = float(sigma * double(from[i]));
      at_ = (at_ + run) % kPool;
      done += run;
    }
    return out;
  }

 private:
  static constexpr size_t kPool = (size_t(1) << 21) - 9;  // a prime: rows of no power of two meet again
  static const std::vector<float>& pool() {
    static const std::vector<float> values = [] {
      std::vector<float> out;
      uint64_t state = 0x6a55;
      const auto uniform = [&] { return (double(splitmix64(state) >> 11) + 1) * 0x1p-53; };
      while (out.size() < kPool) {
        const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
        out.push_back(float(radius * std::cos(angle)));
        out.push_back(float(radius * std::sin(angle)));
      }
      return out;
    }();
    return values;
  }
  size_t at_;
};

// The generator of the published fixtures: a 64-bit LCG and Marsaglia's polar method in single precision.
class FixtureStream {
 public:
  float next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    float u, v, r;
    do {
      u = uniform();
      v = uniform();
      r = u * u + v * v;
    } while (r >= 1 || r == 0);
    const float f = std::sqrt(-2 * std::log(r) / r);
    spare_ = v * f;
    has_spare_ = true;
    return u * f;
  }

 private:
  float uniform() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return float(state_ >> 11 & 0xffffff) / 16777216.0f * 2 - 1;
  }
  uint64_t state_ = 0x9e3779b97f4a7c15u;
  float spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace kvasir::verify::reference
