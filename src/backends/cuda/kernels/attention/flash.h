// The fast attention kernel: 64-key tiles of f16 in shared memory, products on the matrix units.
#pragma once
#include "backends/cuda/kernels/attention/attention.h"

namespace kvasir::cuda {

// Query heads of one KV head that share a tile, and tiles a group needs.
inline constexpr int kDecodeColumns = 16;
inline constexpr int kPrefillColumns = 64;
constexpr int flash_head_tiles(int group) { return (group + kDecodeColumns - 1) / kDecodeColumns; }
// Blocks of a prompt that do not share the keys out.
inline int prompt_blocks(const KvView& kv, int n_head, int n_rows) {
  const int group = n_head / kv.n_kv, heads = group < kDecodeColumns ? group : kDecodeColumns;
  const int rows_each = kPrefillColumns / heads;
  return kv.n_kv * flash_head_tiles(group) * ((n_rows + rows_each - 1) / rows_each);
}
void attend_flash(const Launch& how, const AttentionArgs& args, const StepView& step);

}  // namespace kvasir::cuda
