// Encodes a page of a trellis type with the bytes of the scalar codec (formats/tbq_ht.h, formats/trellis.h).
#pragma once
#include "backends/cpu/kernels/attention/kv_page.h"

namespace kvasir::cpu {

// kBits 2, 3 or 4.
template <int kBits>
void encode_trellis_page(KvSide side, int head_dim, const std::byte* exact, std::byte* region);

extern template void encode_trellis_page<2>(KvSide, int, const std::byte*, std::byte*);
extern template void encode_trellis_page<3>(KvSide, int, const std::byte*, std::byte*);
extern template void encode_trellis_page<4>(KvSide, int, const std::byte*, std::byte*);

}  // namespace kvasir::cpu
