// Attention of a few rows, bound by the bytes of the cache: codes travel to shared memory as they are stored
// and become operands of the matrix units in registers; no expanded tile exists.
#pragma once
#include "backends/cuda/kernels/attention/attention.h"

namespace kvasir::cuda {

inline constexpr int kMaxDecodeRows = 16;
inline constexpr int kDecodeHeads = 8;  // query heads of one KV head that share a block
constexpr int decode_head_tiles(int group) { return (group + kDecodeHeads - 1) / kDecodeHeads; }

// Types whose chunks it expands itself, head sizes 128, 256 and 512, and a device with the shared memory it
// needs.
bool has_decode(const KvView& kv);
// Parts are left with the values of a head in decode_position()'s order.
void attend_decode(const Launch& how, const AttentionArgs& args, const StepView& step);
// Their sums, out of the basis of the values (decode_merge.cu).
void merge_decode(const Launch& how, const AttentionArgs& args);

// Where value d (even; d + 1 follows) of a part lies: as the matrix units leave it.
constexpr int decode_position(int d) { return ((d / 128 * 8 + d % 16 / 2) * 8 + d % 128 / 16) * 2 + d % 2; }
// The value that lies there.
constexpr int decode_value(int at) { return at / 128 * 128 + at / 2 % 8 * 16 + at / 16 % 8 * 2 + at % 2; }
static_assert(decode_value(decode_position(1)) == 1 && decode_value(decode_position(147)) == 147 &&
              decode_value(decode_position(510)) == 510);

}  // namespace kvasir::cuda
