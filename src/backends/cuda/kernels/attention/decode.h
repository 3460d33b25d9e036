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

// Where value d (even; d + 1 follows) of a part lies: as the matrix units leave it.
constexpr int decode_position(int d) { return ((d / 128 * 8 + d % 16 / 2) * 8 + d % 128 / 16) * 2 + d % 2; }

}  // namespace kvasir::cuda
