#include "formats/ruler.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "formats/basis.h"

namespace kvasir::formats {
namespace {

// Unit Gaussian values by Box-Muller from splitmix64.
class Gaussian {
 public:
  explicit Gaussian(uint64_t seed) : state_(seed) {}
  void fill(std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); i += 2) {
      const double radius = std::sqrt(-2 * std::log(uniform())), angle = 6.283185307179586 * uniform();
      x[i] = float(radius * std::cos(angle));
      x[i + 1] = float(radius * std::sin(angle));
    }
  }

 private:
  double uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (double((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  }
  uint64_t state_;
};

}  // namespace

Ruler ruler(const Format& format, int head_dim) {
  if (!format.takes(head_dim))
    fail(ErrorCode::kRefused, "{}: a row of {} values is not one it takes", format.name, head_dim);
  const int n_samples = format.trellis ? 1 << 18 : 1 << 20;  // an NMSE good to about 0.4 or 0.2 %
  const size_t n = size_t(head_dim);
  std::vector<float> x(n), r(n), y(n);
  std::vector<std::byte> row(format.row_bytes(head_dim));
  Gaussian gaussian(64);
  double error = 0, energy = 0;
  for (int done = 0; done < n_samples; done += head_dim) {
    gaussian.fill(x);
    to_basis(format.basis, kKeys, x.data(), r.data(), head_dim);
    format.encode(r.data(), row.data(), head_dim);
    format.decode(row.data(), r.data(), head_dim);
    from_basis(format.basis, kKeys, r.data(), y.data(), head_dim);
    for (size_t i = 0; i < n; ++i) {
      error += (double(x[i]) - y[i]) * (double(x[i]) - y[i]);
      energy += double(x[i]) * x[i];
    }
  }
  const double nmse = error / energy, rate = format.bits_per_value(head_dim);
  const double lost = nmse > 0 ? rate - 0.5 * std::log2(1 / nmse) : std::numeric_limits<double>::quiet_NaN();
  return {rate, nmse, format.theory(head_dim), lost};
}

}  // namespace kvasir::formats
