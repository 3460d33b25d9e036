// Rows of a page as f32, through the scalar codec: the truth that the fast producers are tested against.
#pragma once
#include <cstddef>

#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/tcq_table.h"

namespace kvasir::cpu {

// Tokens [first, end) of the keys or values of one KV head into tile[token][head_dim].
void read_page_rows(DType k, DType v, KvSide side, int head_dim, int kv_head, const std::byte* page,
                    int first, int end, const formats::TcqTable* tcq, float* tile);

}  // namespace kvasir::cpu
