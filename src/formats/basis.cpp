#include "formats/basis.h"

#include <array>
#include <bit>

#include "base/error.h"
#include "base/wide.h"
#include "formats/head_wide.h"

namespace kvasir::formats {
namespace {

// Sign bits of n values.
template <size_t n>
using SignBits = std::array<uint32_t, n>;
template <size_t n>
constexpr SignBits<n> sign_bits(const uint64_t* signs) {
  SignBits<n> out{};
  for (size_t i = 0; i < n; ++i) out[i] = uint32_t(signs[i / 64] >> (i % 64) & 1) << 31;
  return out;
}
constexpr uint64_t kWords32[] = {kSigns32};
constexpr SignBits<32> kBits32 = sign_bits<32>(kWords32);
constexpr SignBits<128> kBits1 = sign_bits<128>(kSigns1), kBits2 = sign_bits<128>(kSigns2);

template <size_t n>
[[gnu::always_inline]] inline void flip(const SignBits<n>& bits, float* x) {
  for (size_t i = 0; i < n; ++i) x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[i]) ^ bits[i]);
}

// Distances 1 and 2 within four values: b + a and a + -b, b the value's partner, are their sum and
// difference.
[[gnu::always_inline]] inline void short_butterflies(float* x) {
  typedef float Four __attribute__((vector_size(16), may_alias, aligned(4)));
  typedef int32_t Bits __attribute__((vector_size(16)));
  constexpr int32_t kMinus = INT32_MIN;
  Four v = *reinterpret_cast<Four*>(x);
  v = Four{v[1], v[0], v[3], v[2]} + Four(Bits(v) ^ Bits{0, kMinus, 0, kMinus});
  v = Four{v[2], v[3], v[0], v[1]} + Four(Bits(v) ^ Bits{0, 0, kMinus, kMinus});
  *reinterpret_cast<Four*>(x) = v;
}

[[gnu::always_inline]] inline void butterflies(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) short_butterflies(x + i);
  for (int64_t distance = 4; distance < n; distance *= 2)
    for (int64_t start = 0; start < n; start += 2 * distance)
      for (int64_t i = start; i < start + distance; ++i) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
}

template <int n>
[[gnu::always_inline]] inline void normal(float* x) {
  butterflies(x, n);
  for (int i = 0; i < n; ++i) x[i] *= n == 32 ? 0.1767766952966369f : 0.08838834764831845f;
}

KVASIR_WIDE void block_to_basis(Basis basis, float* x) {
  switch (basis) {
    case Basis::kBlock32:
      flip(kBits32, x);
      return normal<32>(x);
    case Basis::kSignedBlock128:
      flip(kBits1, x);
      normal<128>(x);
      return flip(kBits2, x);
    default:
      return normal<128>(x);
  }
}

KVASIR_WIDE void block_from_basis(Basis basis, float* x) {
  switch (basis) {
    case Basis::kBlock32:
      normal<32>(x);
      return flip(kBits32, x);
    case Basis::kSignedBlock128:
      flip(kBits2, x);
      normal<128>(x);
      return flip(kBits1, x);
    default:
      return normal<128>(x);  // its own inverse
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

KVASIR_WIDE void hadamard(float* x, int64_t n) { butterflies(x, n); }

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
