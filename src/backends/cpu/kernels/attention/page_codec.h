// Encoding of whole pages: from the f16 rows of an exact page to the type's own region. Exact regions are
// laid out as f16 regions (kv_page.h) and hold the rows in the type's own basis (formats/head_wide.h), so
// that the exact page and the encoded one answer the same query.
#pragma once
#include <cstddef>

#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/tcq_table.h"

namespace kvasir::cpu {

// One head's 64 keys or values through the scalar codec: the bytes every vector path must give.
// Precondition: every value is finite.
void encode_page_scalar(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                        const formats::TcqTable* tcq);

// One row into or out of the exact region of a head, as f32.
void store_exact_row(KvSide side, int head_dim, const float* row, int token, std::byte* exact);
void load_exact_row(KvSide side, int head_dim, const std::byte* exact, int token, float* row);

}  // namespace kvasir::cpu
