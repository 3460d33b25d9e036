// The rotation of formats/head_wide.h over a vector type: the same butterflies on the same pairs, so the same
// bits. Two walks over the head: distances 1 .. 32 within 64 values, then 64 .. n / 2 across them. Included
// by each ISA file, into an unnamed namespace.
#pragma once
#include "backends/cpu/kernels/attention/headwide_body.h"
#include "backends/cpu/kernels/attention/kernels.h"
#include "base/mutation.h"

namespace kvasir::cpu {
namespace {

// Butterflies of whole vectors: x[i] and x[i + distance] for distance 1 .. count / 2.
template <typename Vec, int count, int distance = 1>
[[gnu::always_inline]] inline void butterflies(typename Vec::F (&x)[count]) {
  if constexpr (distance < count) {
    static_for<count>([&](auto i) [[gnu::always_inline]] {
      if constexpr ((i & distance) == 0) {
        const auto a = x[i], b = x[i + distance];
        x[i] = Vec::add(a, b);
        x[i + distance] = Vec::sub(a, b);
      }
    });
    butterflies<Vec, count, 2 * distance>(x);
  }
}

template <typename Vec>
[[gnu::always_inline]] inline typename Vec::F butterflies_within(typename Vec::F x) {
  x = Vec::template butterfly<2>(Vec::template butterfly<1>(x));
  if constexpr (Vec::kN > 4) x = Vec::template butterfly<4>(x);
  if constexpr (Vec::kN > 8) x = Vec::template butterfly<8>(x);
  return x;
}

template <typename Vec, bool kFlip>
void rotate_blocks(const float* x, const float* signs, float* out, int n) {
  constexpr int count = 64 / Vec::kN;
  for (int at = 0; at < n; at += 64) {
    typename Vec::F v[count];
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
      const int d = at + i * Vec::kN;
      v[i] = Vec::load(x + d);
      if constexpr (kFlip) v[i] = Vec::flip(v[i], Vec::load(signs + d));
      v[i] = butterflies_within<Vec>(v[i]);
    }
    butterflies<Vec, count>(v);
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) Vec::store(out + at + i * Vec::kN, v[i]);
  }
}

template <typename Vec, bool kFlip, int kBlocks>
void rotate_across(const float* signs, float norm, float* out) {
  const auto scale = Vec::set1(norm);
  for (int d = 0; d < 64; d += Vec::kN) {
    typename Vec::F v[kBlocks];
#pragma GCC unroll 8
    for (int i = 0; i < kBlocks; ++i) v[i] = Vec::load(out + d + i * 64);
    butterflies<Vec, kBlocks>(v);
#pragma GCC unroll 8
    for (int i = 0; i < kBlocks; ++i) {
      v[i] = Vec::mul(v[i], scale);
      if constexpr (kFlip) v[i] = Vec::flip(v[i], Vec::load(signs + d + i * 64));
      Vec::store(out + d + i * 64, v[i]);
    }
  }
}

// Signs before (kBack false) or after.
template <typename Vec, bool kBack>
void transform_head(formats::Role side, const float* x, float* out, int64_t n) {
  const bool values = side == formats::kValues || mutated(Mutation::kKeySigns);
  const float* signs = head_wide_signs(values ? KvSide::kValue : KvSide::kKey);
  rotate_blocks<Vec, !kBack>(x, signs, out, int(n));
  switch (n) {
    case 64:
      return rotate_across<Vec, kBack, 1>(signs, 0.125f, out);
    case 128:
      return rotate_across<Vec, kBack, 2>(signs, 0.08838834764831845f, out);
    case 256:
      return rotate_across<Vec, kBack, 4>(signs, 0.0625f, out);
    default:
      return rotate_across<Vec, kBack, 8>(signs, 0.04419417382415922f, out);
  }
}

template <typename Vec>
void rotate_head(formats::Role side, const float* x, float* out, int64_t n) {
  transform_head<Vec, false>(side, x, out, n);
}

template <typename Vec>
void unrotate_head(formats::Role side, const float* r, float* out, int64_t n) {
  transform_head<Vec, true>(side, r, out, n);
  if (mutated(Mutation::kUnrotateSign)) out[3] = -out[3];
}

}  // namespace
}  // namespace kvasir::cpu
