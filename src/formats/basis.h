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

// `out` may be `x`; n is a row: a head size for kHeadWide, a multiple of the block otherwise. Errors:
// kRefused for another n.
void to_basis(Basis basis, Role side, const float* x, float* out, int64_t n);
void from_basis(Basis basis, Role side, const float* r, float* out, int64_t n);

// In place, n a power of two: butterflies (a + b, a - b) over distances 1, 2, 4, ..., n / 2, no scaling.
void hadamard(float* x, int64_t n);

}  // namespace kvasir::formats
