#include "backends/cpu/kernels/attention/page_codec.h"

#include "backends/cpu/kernels/attention/attention.h"
#include "formats/format.h"

namespace kvasir::cpu {

void store_exact_row(KvSide side, int head_dim, const float* row, int token, std::byte* exact) {
  std::byte wire[kMaxHeadDim * sizeof(uint16_t)];
  formats::require(DType::f16).encode(row, wire, head_dim);
  pack_row(DType::f16, side, head_dim, wire, token, exact);
}

void load_exact_row(KvSide side, int head_dim, const std::byte* exact, int token, float* row) {
  std::byte wire[kMaxHeadDim * sizeof(uint16_t)];
  unpack_row(DType::f16, side, head_dim, exact, token, wire);
  formats::require(DType::f16).decode(wire, row, head_dim);
}

void encode_page_scalar(DType type, KvSide side, int head_dim, const std::byte* exact, std::byte* region,
                        const formats::TcqTable* tcq) {
  const formats::Format& format = formats::require(type);
  float row[kMaxHeadDim];
  std::byte wire[kMaxHeadDim * sizeof(float)];
  for (int token = 0; token < graph::kPageTokens; ++token) {
    load_exact_row(side, head_dim, exact, token, row);
    format.encode_row(tcq, row, wire, head_dim);
    pack_row(type, side, head_dim, wire, token, region);
  }
}

}  // namespace kvasir::cpu
