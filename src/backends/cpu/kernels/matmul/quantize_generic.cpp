#include <cmath>

#include "backends/cpu/kernels/matmul/quantize_body.h"

namespace kvasir::cpu::matmul {
namespace {

struct GenericQuantizer {
  static float absmax(const float* x) {
    float amax = 0;
    for (int i = 0; i < kBlock; ++i) amax = std::fmax(amax, std::fabs(x[i]));
    return amax;
  }
  static int half(const float* x, float inverse, int8_t* codes) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) {
      const int code = int(std::nearbyint(x[i] * inverse));
      codes[i] = int8_t(code);
      sum += code;
    }
    return sum;
  }
};

}  // namespace

KVASIR_QUANTIZE_ROWS(generic, GenericQuantizer)

}  // namespace kvasir::cpu::matmul
