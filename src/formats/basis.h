// The bases that rows of KV types live in. A row is written, scored and mixed in its type's basis: a query
// goes there once a head with the keys' basis, and the sum of values comes back once with the values'. Each
// is orthonormal:
//   kHeadWide       head_wide.h, over the whole head
//   kBlock32        by 32 values: H (s . x) / sqrt(32), s the 32 signs of tbq3_0 and tbq4_0
//   kBlock128       by 128 values: H x / sqrt(128), no signs (q4_polar)
//   kSignedBlock128 by 128 values: s2 . (H (s1 . x) / sqrt(128)) (tbq3_tcq)
// H is the Walsh-Hadamard transform in natural order. Bytes and signs: research of the published types,
// docs/formats.md.
#pragma once
#include <cstdint>

#include "formats/format.h"

namespace kvasir::formats {

// Signs of the blocks, bit i set: value i is negated.
inline constexpr uint32_t kSigns32 = 0x5a69b4d2;
inline constexpr uint64_t kSigns1[2] = {0x42f85949e46a0359, 0x49f250a9a4c63bbb},
                          kSigns2[2] = {0x3f628fdc16acee90, 0xbea56562b7a5357a};

// `out` may be `x`; n is a row: a head size for kHeadWide, a multiple of the block otherwise. Errors:
// kRefused for another n.
void to_basis(Basis basis, Role side, const float* x, float* out, int64_t n);
void from_basis(Basis basis, Role side, const float* r, float* out, int64_t n);

// In place, n a power of two from 4 on: butterflies (a + b, a - b) over distances 1, 2, 4, ..., n / 2, no
// scaling.
void hadamard(float* x, int64_t n);

}  // namespace kvasir::formats
