// What the head-wide types share: the basis their rows live in and the result of an encode.
//
// A row is one head of d = 64, 128, 256 or 512 values. In the rotated basis it is
//   r = H_d (s . x) / sqrt(d)
// with H_d the Walsh-Hadamard transform in natural order (butterflies (a + b, a - b) over distances
// 1, 2, 4, ..., d/2, then one multiply) and s a fixed vector of signs, so <q, x> = <rotate(q), rotate(x)>.
// One rotation a side serves every head-wide type, layer and head: a query is rotated once with the keys'
// signs, and the sum of values is rotated back once with the values'.
//
// Signs: splitmix64 from the state kHeadWideSeed + (0 for keys, 1 for values); value i is negated when bit
// i % 64 of output i / 64 is set. A shorter head uses the first signs of a longer one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/format.h"

namespace kvasir::formats {

inline constexpr uint64_t kHeadWideSeed = 0x6b76617369720040;  // "kvasir", 64
inline constexpr int kMaxHeadWide = 512;
inline constexpr uint32_t kHeadScaleBytes = 2;

// kOverflow: the scale would exceed f16. Both faults leave a row of zero bytes, which decodes to zeros.
enum class EncodeStatus : uint8_t { kOk, kNotFinite, kOverflow };

// `out` may be `x`. `side` is kKeys or kValues; n is a head size listed above. Errors: kRefused for any other
// n.
void rotate(Role side, const float* x, float* out, int64_t n);
void unrotate(Role side, const float* r, float* out, int64_t n);
// -1 for a negated value.
int head_sign(Role side, int i);

// One row in the rotated basis, in f32 or in f16 (as the open pages of a cache hold it), to wire form and
// back. Errors: kRefused for a type that is not head-wide or a size it does not take.
EncodeStatus encode_rotated(DType type, const float* r, std::byte* row, int64_t n);
EncodeStatus encode_rotated(DType type, const uint16_t* r_f16, std::byte* row, int64_t n);
void decode_rotated(DType type, const std::byte* row, float* r, int64_t n);

// The same of a row in the model's own basis.
EncodeStatus encode_head(DType type, Role side, const float* x, std::byte* row, int64_t n);
void decode_head(DType type, Role side, const std::byte* row, float* x, int64_t n);

}  // namespace kvasir::formats
