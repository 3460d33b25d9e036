#include "formats/basis.h"

#include "base/error.h"
#include "formats/head_wide.h"

namespace kvasir::formats {
namespace {

void flip(const uint64_t* signs, float* x, int n) {
  for (int i = 0; i < n; ++i)
    if (signs[i / 64] >> (i % 64) & 1) x[i] = -x[i];
}

void scale(float* x, int n, float by) {
  for (int i = 0; i < n; ++i) x[i] *= by;
}

void block_to_basis(Basis basis, float* x) {
  const uint64_t signs32 = kSigns32;
  switch (basis) {
    case Basis::kBlock32:
      flip(&signs32, x, 32);
      hadamard(x, 32);
      return scale(x, 32, 0.1767766952966369f);
    case Basis::kSignedBlock128:
      flip(kSigns1, x, 128);
      hadamard(x, 128);
      scale(x, 128, 0.08838834764831845f);
      return flip(kSigns2, x, 128);
    default:
      hadamard(x, 128);
      return scale(x, 128, 0.08838834764831845f);
  }
}

void block_from_basis(Basis basis, float* x) {
  const uint64_t signs32 = kSigns32;
  switch (basis) {
    case Basis::kBlock32:
      hadamard(x, 32);
      scale(x, 32, 0.1767766952966369f);
      return flip(&signs32, x, 32);
    case Basis::kSignedBlock128:
      flip(kSigns2, x, 128);
      hadamard(x, 128);
      scale(x, 128, 0.08838834764831845f);
      return flip(kSigns1, x, 128);
    default:
      return block_to_basis(basis, x);  // its own inverse
  }
}

template <typename Block>
void by_blocks(Basis basis, const float* x, float* out, int64_t n, const Block& block) {
  const int size = basis == Basis::kBlock32 ? 32 : 128;
  if (n % size != 0)
    fail(ErrorCode::kRefused, "required: a row of a multiple of {} values; this one has {}", size, n);
  for (int64_t i = 0; out != x && i < n; ++i) out[i] = x[i];
  for (int64_t i = 0; i < n; i += size) block(basis, out + i);
}

}  // namespace

void hadamard(float* x, int64_t n) {
  for (int64_t distance = 1; distance < n; distance *= 2)
    for (int64_t start = 0; start < n; start += 2 * distance)
      for (int64_t i = start; i < start + distance; ++i) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
}

void to_basis(Basis basis, Role side, const float* x, float* out, int64_t n) {
  if (basis == Basis::kHeadWide) return rotate(side, x, out, n);
  if (basis == Basis::kModel) {
    for (int64_t i = 0; out != x && i < n; ++i) out[i] = x[i];
    return;
  }
  by_blocks(basis, x, out, n, block_to_basis);
}

void from_basis(Basis basis, Role side, const float* r, float* out, int64_t n) {
  if (basis == Basis::kHeadWide) return unrotate(side, r, out, n);
  if (basis == Basis::kModel) return to_basis(basis, side, r, out, n);
  by_blocks(basis, r, out, n, block_from_basis);
}

}  // namespace kvasir::formats
