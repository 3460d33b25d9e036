// Encodes a page of a trellis type with the bytes of the scalar codec (formats/tbq_ht.h, formats/trellis.h).
#pragma once
#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/tcq_table.h"

namespace kvasir::cpu {

// kBits 2, 3 or 4.
template <int kBits>
void encode_trellis_page(KvSide side, int head_dim, const std::byte* exact, std::byte* region);

// The same of tbq3_tcq (formats/tbq3_tcq.h).
void encode_tcq_page(KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                     const formats::TcqTable& table);

extern template void encode_trellis_page<2>(KvSide, int, const std::byte*, std::byte*);
extern template void encode_trellis_page<3>(KvSide, int, const std::byte*, std::byte*);
extern template void encode_trellis_page<4>(KvSide, int, const std::byte*, std::byte*);

}  // namespace kvasir::cpu
