#include "formats/head_wide.h"

#include <array>

#include "base/error.h"
#include "formats/basis.h"
#include "formats/tbq_h.h"

namespace kvasir::formats {
namespace {

constexpr int kSignWords = kMaxHeadWide / 64;
using Signs = std::array<uint64_t, kSignWords>;

constexpr Signs make_signs(uint64_t state) {
  Signs out{};
  for (uint64_t& word : out) {
    state += 0x9e3779b97f4a7c15;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
  return out;
}

constexpr Signs kKeySigns = make_signs(kHeadWideSeed), kValueSigns = make_signs(kHeadWideSeed + 1);

void flip(Role side, const float* x, float* out, int64_t n) {
  const Signs& signs = side == kValues ? kValueSigns : kKeySigns;
  for (int64_t i = 0; i < n; ++i) out[i] = (signs[size_t(i / 64)] >> (i % 64)) & 1 ? -x[i] : x[i];
}

// H_n x / sqrt(n), in place.
void normal_hadamard(float* x, int64_t n) {
  hadamard(x, n);
  const float norm = n == 64    ? 0.125f
                     : n == 128 ? 0.08838834764831845f
                     : n == 256 ? 0.0625f
                                : 0.04419417382415922f;
  for (int64_t i = 0; i < n; ++i) x[i] *= norm;
}

void require_size(int64_t n) {
  if (n != 64 && n != 128 && n != 256 && n != 512)
    fail(ErrorCode::kRefused, "head-wide types: required: head size 64, 128, 256 or 512; this one is {}", n);
}

// `call` with the type's bits as a compile-time constant.
template <typename Call>
auto with_bits(DType type, int64_t n, const Call& call) {
  require_size(n);
  switch (type) {
    case DType::tbq2_h:
      return call(std::integral_constant<int, 2>{});
    case DType::tbq3_h:
      return call(std::integral_constant<int, 3>{});
    case DType::tbq4_h:
      return call(std::integral_constant<int, 4>{});
    default:
      fail(ErrorCode::kRefused, "type id {} is not a head-wide type", uint32_t(type));
  }
}

}  // namespace

int head_sign(Role side, int i) {
  const Signs& signs = side == kValues ? kValueSigns : kKeySigns;
  return (signs[size_t(i / 64)] >> (i % 64)) & 1 ? -1 : 1;
}

void rotate(Role side, const float* x, float* out, int64_t n) {
  require_size(n);
  flip(side, x, out, n);
  normal_hadamard(out, n);
}

void unrotate(Role side, const float* r, float* out, int64_t n) {
  require_size(n);
  if (out != r) std::memcpy(out, r, size_t(n) * sizeof(float));
  normal_hadamard(out, n);
  flip(side, out, out, n);
}

EncodeStatus encode_rotated(DType type, const float* r, std::byte* row, int64_t n) {
  return with_bits(type, n, [&](auto bits) { return encode_head_checked<bits()>(r, int(n), row); });
}

EncodeStatus encode_rotated(DType type, const uint16_t* r_f16, std::byte* row, int64_t n) {
  require_size(n);
  float r[kMaxHeadWide];
  for (int64_t i = 0; i < n; ++i) r[i] = f16_to_f32(r_f16[i]);
  return encode_rotated(type, r, row, n);
}

void decode_rotated(DType type, const std::byte* row, float* r, int64_t n) {
  with_bits(type, n, [&](auto bits) { decode_head<bits()>(row, int(n), r); });
}

EncodeStatus encode_head(DType type, Role side, const float* x, std::byte* row, int64_t n) {
  require_size(n);
  float r[kMaxHeadWide];
  rotate(side, x, r, n);
  return encode_rotated(type, r, row, n);
}

void decode_head(DType type, Role side, const std::byte* row, float* x, int64_t n) {
  decode_rotated(type, row, x, n);
  unrotate(side, x, x, n);
}

}  // namespace kvasir::formats
