#include "verify/reference/lloyd.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

namespace kvasir::verify::reference {
namespace {

// With x = sqrt(d) sin t the density is cos(t)^(d-2) dt, and every moment is an integral of sin^m cos^n over
// an angle, which the textbook reductions give exactly:
//   I(0, n) = sin cos^(n-1) / n + (n-1)/n I(0, n-2),   I(1, n) = -cos^(n+1) / (n+1),
//   I(m, n) = -sin^(m-1) cos^(n+1) / (m+n) + (m-1)/(m+n) I(m-2, n).
class Moments {
 public:
  explicit Moments(int d) : d_(d), total_(2 * antiderivative(0, std::asin(1.0))) {}

  double angle(double x) const { return std::asin(std::min(1.0, x / std::sqrt(double(d_)))); }
  // E[x^m; a <= t < b].
  double between(int m, double a, double b) const {
    return std::pow(double(d_), 0.5 * m) * (antiderivative(m, b) - antiderivative(m, a)) / total_;
  }

 private:
  double antiderivative(int m, double t) const {
    const int n = d_ - 2;
    const double s = std::sin(t), c = std::cos(t);
    if (m == 1) return -std::pow(c, n + 1) / (n + 1);
    if (m >= 2)
      return (-std::pow(s, m - 1) * std::pow(c, n + 1) + (m - 1) * antiderivative(m - 2, t)) / (m + n);
    // Upwards: n is even, so it starts at I(0, 0) = t.
    double value = t, power = c;
    for (int k = 2; k <= n; k += 2, power *= c * c) value = s * power / k + double(k - 1) / k * value;
    return value;
  }

  int d_;
  double total_;
};

std::vector<double> positive_levels(const Moments& p, int bits) {
  const int n = 1 << (bits - 1);
  std::vector<double> level(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) level[size_t(i)] = 3.0 * (i + 0.5) / n;
  const double end = std::asin(1.0);
  for (int round = 0; round < 100000; ++round) {
    double moved = 0, low = 0;
    for (int i = 0; i < n; ++i) {
      const double high = i + 1 < n ? p.angle(0.5 * (level[size_t(i)] + level[size_t(i) + 1])) : end;
      const double next = p.between(1, low, high) / p.between(0, low, high);
      moved = std::max(moved, std::fabs(next - level[size_t(i)]));
      // The next cell starts at the midpoint of the old levels.
      low = high;
      level[size_t(i)] = next;
    }
    if (moved < 2e-13) break;
  }
  return level;
}

// Mean squared error less what the row's own scale takes away: with c the level, e = x - c, D = E[e^2], to
// first order in 1/d  (Var[c e] - Cov[c e, x^2]^2 / Var[x^2]) / (d (1 - D)); sum x^2 is fixed on the sphere.
double row_nmse(const Moments& p, const std::vector<double>& level, int d) {
  double mse = 0, ce = 0, ce2 = 0, ce_xx = 0, x4 = 0, low = 0;
  for (size_t i = 0; i < level.size(); ++i) {
    const double c = level[i];
    const double high = i + 1 < level.size() ? p.angle(0.5 * (level[i] + level[i + 1])) : std::asin(1.0);
    double m[5];
    for (int k = 0; k < 5; ++k) m[k] = 2 * p.between(k, low, high);
    mse += m[2] - 2 * c * m[1] + c * c * m[0];
    ce += c * m[1] - c * c * m[0];
    ce2 += c * c * (m[2] - 2 * c * m[1] + c * c * m[0]);
    ce_xx += c * m[3] - c * c * m[2];
    x4 += m[4];
    low = high;
  }
  const double covariance = ce_xx - ce, variance = x4 - 1;
  return mse - (ce2 - ce * ce - covariance * covariance / variance) / (d * (1 - mse));
}

}  // namespace

const Levels& sphere_levels(int bits, int d) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, Levels> kept;
  const std::lock_guard lock(mutex);
  Levels& out = kept[{bits, d}];
  if (!out.level.empty()) return out;
  const Moments p(d);
  const std::vector<double> positive = positive_levels(p, bits);
  for (size_t i = positive.size(); i > 0; --i) out.level.push_back(-positive[i - 1]);
  out.level.insert(out.level.end(), positive.begin(), positive.end());
  out.nmse = row_nmse(p, positive, d);
  return out;
}

}  // namespace kvasir::verify::reference
