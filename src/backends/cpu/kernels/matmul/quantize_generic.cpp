#include <cmath>

#include "backends/cpu/kernels/matmul/activation.h"

namespace kvasir::cpu::matmul {
namespace {

void quantize_block(const float* x, const MutableActivationBlock& out, int n_rows, int row) {
  float amax = 0;
  for (int i = 0; i < kBlock; ++i) amax = std::fmax(amax, std::fabs(x[i]));
  const float inverse = amax < kTinyBlock ? 0.0f : 127.0f / amax;
  int half[2] = {0, 0};
  for (int i = 0; i < kBlock; ++i) {
    const int code = int(std::nearbyint(x[i] * inverse));
    out.codes[row * kBlock + i] = int8_t(code);
    half[i / 16] += code;
  }
  out.scale[row] = amax < kTinyBlock ? 0.0f : amax / 127.0f;
  out.start[row] = kMagicBits - 128 * (half[0] + half[1]);
  out.sum[row] = float(half[0] + half[1]);
  for (int h = 0; h < 2; ++h) {
    out.start_half[h * n_rows + row] = kMagicBits - 128 * half[h];
    out.sum_half[h * n_rows + row] = float(half[h]);
  }
}

}  // namespace

void quantize_rows_generic(const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                           std::byte* packed) {
  for (int64_t b = 0; b < n_in / kBlock; ++b) {
    const MutableActivationBlock out(packed + size_t(b) * activation_stride(n_rows), n_rows);
    for (int row = begin; row < end; ++row) quantize_block(x + row * stride + b * kBlock, out, n_rows, row);
  }
}

}  // namespace kvasir::cpu::matmul
