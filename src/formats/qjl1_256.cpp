#include "formats/qjl1_256.h"

#include <vector>

namespace kvasir::formats {
namespace {

std::vector<float> make_projection() {
  std::vector<float> out(128 * size_t(kSketch));
  uint64_t state = 42 ^ 0xc0ffee1234567890;
  const auto uniform = [&] {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return double(((z ^ (z >> 31)) >> 11) | 1) * 0x1p-53;
  };
  for (size_t i = 0; i < out.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 6.28318530717958647692 * uniform();
    out[i] = float(radius * std::cos(angle));
    out[i + 1] = float(radius * std::sin(angle));
  }
  return out;
}

}  // namespace

const float* qjl_projection() {
  static const std::vector<float> projection = make_projection();
  return projection.data();
}

void qjl_sketch(const float* x, float* sketch) {
  const float* row = qjl_projection();
  for (int j = 0; j < kSketch; ++j) sketch[j] = 0;
  for (int i = 0; i < 128; ++i, row += kSketch)
    for (int j = 0; j < kSketch; ++j) sketch[j] += x[i] * row[j];
}

}  // namespace kvasir::formats
