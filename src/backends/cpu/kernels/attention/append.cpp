// Writing rows to the paged cache.
#include <cmath>
#include <cstring>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/format.h"

namespace kvasir::cpu {
namespace {

// Largest magnitude a type may be given: more would round to infinity, or need an f16 block scale beyond
// 65504.
float largest(DType type) {
  constexpr float kLargestF16 = 65504.0f;
  switch (type) {
    case DType::f16:
      return kLargestF16;
    case DType::bf16:
      return 0x1.fep127f;
    case DType::q8_0:
      return 127 * kLargestF16;
    case DType::q5_0:
      return 16 * kLargestF16;
    case DType::q4_0:
      return 8 * kLargestF16;
    default:
      return 0x1.fffffep127f;
  }
}

bool in_range(const float* x, int n, float limit) {
  int outside = 0;
  for (int i = 0; i < n; ++i) outside += !(std::fabs(x[i]) <= limit);  // a NaN compares false
  return outside == 0;
}

void put_f16(const AttentionKernels& kernels, KvSide side, const float* x, int head_dim, int token,
             std::byte* region) {
  uint16_t row[kMaxHeadDim];
  kernels.store_f16(x, head_dim, row);
  uint16_t* out = reinterpret_cast<uint16_t*>(region);
  if (side == KvSide::kKey) {
    out += size_t(token / 32) * head_dim * 32 + token % 32;
    for (int d = 0; d < head_dim; ++d) out[size_t(d) * 32] = row[d];
  } else {
    for (int d = 0; d < head_dim; d += 32)
      std::memcpy(out + size_t(d) * graph::kPageTokens + size_t(token) * 32, row + d, 32 * sizeof(uint16_t));
  }
}

struct Writer {
  const AttentionKernels& kernels;
  KvSide side;
  const formats::Format& format;
  int head_dim;

  // False when a value is not finite or overflows the type; the page is then unchanged.
  bool put(const float* x, int token, std::byte* region) const {
    if (!in_range(x, head_dim, largest(format.type))) return false;
    if (format.type == DType::f16) {
      put_f16(kernels, side, x, head_dim, token, region);
      return true;
    }
    std::byte wire[kMaxHeadDim * sizeof(float)];
    format.encode(x, wire, head_dim);
    pack_row(format.type, side, head_dim, wire, token, region);
    return true;
  }
};

}  // namespace

int append_rows(Isa isa, const AppendArgs& args, int begin, int end) {
  const AttentionKernels& kernels = *best_attention_kernels(isa);
  const KvPage layout(args.k_type, args.v_type, args.head_dim);
  const Writer keys{kernels, KvSide::kKey, formats::require(args.k_type), args.head_dim};
  const Writer values{kernels, KvSide::kValue, formats::require(args.v_type), args.head_dim};
  for (int r = begin; r < end; ++r) {
    const graph::Row& row = args.rows[r];
    const auto& table = args.sequences[size_t(row.seq)].page_table[size_t(args.table_class)];
    const int32_t physical = table[size_t(row.pos / graph::kPageTokens)];
    std::byte* page = args.pages + size_t(physical) * args.page_bytes;
    const int token = row.pos % graph::kPageTokens;
    for (int h = 0; h < args.n_kv; ++h) {
      const float* k = args.k + int64_t(r) * args.k_stride + int64_t(h) * args.head_dim;
      const float* v = args.v + int64_t(r) * args.v_stride + int64_t(h) * args.head_dim;
      if (!keys.put(k, token, page + layout.key_offset(h))) return r;
      if (!values.put(v, token, page + layout.value_offset(h))) return r;
    }
  }
  return -1;
}

}  // namespace kvasir::cpu
