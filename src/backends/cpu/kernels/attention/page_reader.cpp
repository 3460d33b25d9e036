#include "backends/cpu/kernels/attention/page_reader.h"

#include "backends/cpu/kernels/attention/attention.h"
#include "formats/format.h"

namespace kvasir::cpu {

void read_page_rows(DType k, DType v, KvSide side, int head_dim, int kv_head, const std::byte* page,
                    int first, int end, const formats::TcqTable* tcq, float* tile) {
  const KvPage layout(k, v, head_dim);
  const bool key = side == KvSide::kKey;
  const formats::Format& format = formats::require(key ? k : v);
  const std::byte* region = page + (key ? layout.key_offset(kv_head) : layout.value_offset(kv_head));
  std::byte wire[kMaxHeadDim * sizeof(float)];
  for (int t = first; t < end; ++t) {
    unpack_row(format.type, side, head_dim, region, t, wire);
    format.decode_row(tcq, wire, tile + size_t(t) * head_dim, head_dim);
  }
}

}  // namespace kvasir::cpu
