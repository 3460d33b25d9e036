// Writing rows to the paged cache.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "base/half.h"
#include "base/mutation.h"
#include "formats/format.h"
#include "formats/tcq_table.h"

namespace kvasir::cpu {
namespace {

constexpr float kLargestF16 = 65504.0f;

// Largest magnitude a type that stores rows as they come may be given: more would round to infinity.
float largest(DType type) {
  switch (type) {
    case DType::f16:
      return kLargestF16;
    case DType::bf16:
      return 0x1.fep127f;
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

// Rows below this fit every type of Kvasir's own levels: the largest scale any makes of 128 such values is 88
// times it.
constexpr float kAlwaysFits = 512.0f;

// Would the encoder have to hold a scale to what f16 can say? Then 1/16 of the row, which is exact, is not
// stored as 1/16 of it (blocks of tiny values beside large ones may differ in their last bits). Rows that
// large are rare enough to be encoded twice.
bool scale_fits(const formats::Format& format, const formats::TcqTable* tcq, const uint16_t* row,
                int head_dim) {
  float large[kMaxHeadDim], small[kMaxHeadDim], top = 0;
  std::byte wire[kMaxHeadDim * sizeof(float)];
  for (int d = 0; d < head_dim; ++d) {
    large[d] = f16_to_f32(row[d]);
    small[d] = large[d] / 16;
    top = std::max(top, std::fabs(large[d]));
  }
  for (float* x : {large, small}) {
    format.encode_row(tcq, x, wire, head_dim);
    format.decode_row(tcq, wire, x, head_dim);
  }
  // Levels of a given table may be large beside a row: its scale then has no digits, 1/16 of it fewer still.
  const float no_digits = tcq ? 17 * 0x1p-25f * 127 * tcq->step : 0;
  int differ = 0;
  for (int d = 0; d < head_dim; ++d)
    differ += !(std::fabs(large[d] - small[d] * 16) <= top * 0x1p-11f + no_digits);
  return differ == 0;
}

struct Writer {
  const AttentionKernels& kernels;
  KvSide side;
  const formats::Format& format;
  int head_dim;
  const formats::TcqTable* tcq;

  // False when a value is not finite or overflows what stores it; the page is then unchanged.
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

  // The same into an exact page, in the type's basis.
  bool put_exact(const float* x, int token, std::byte* region) const {
    if (!in_range(x, head_dim, kLargestF16)) return false;
    alignas(64) float rotated[kMaxHeadDim];
    if (const Rotation rotate = to_basis_of(format.type, kernels)) {
      rotate(side == KvSide::kKey ? formats::kKeys : formats::kValues, x, rotated, head_dim);
      if (!in_range(rotated, head_dim, kLargestF16)) return false;
      x = rotated;
    }
    const bool given = tcq && format.type == DType::tbq3_tcq;  // its levels may be of any size
    if (given || !in_range(x, head_dim, kAlwaysFits)) {
      uint16_t row[kMaxHeadDim];
      kernels.store_f16(x, head_dim, row);
      if (!scale_fits(format, tcq, row, head_dim)) return false;
    }
    put_f16(kernels, side, x, head_dim, token, region);
    return true;
  }
};

// Where head `kv_head` of an exact page has its keys and values.
struct ExactLayout {
  size_t head, value;
  explicit ExactLayout(const AppendArgs& args)
      : head(args.exact.page_bytes / size_t(args.n_kv)),
        value(formats::require(args.k_type).open_page()
                  ? sizeof(uint16_t) * size_t(graph::kPageTokens) * size_t(args.head_dim)
                  : 0) {}
  size_t offset(int kv_head, KvSide side) const {
    return size_t(kv_head) * head + (side == KvSide::kValue ? value : 0);
  }
};

}  // namespace

int append_rows(Isa isa, const AppendArgs& args, int begin, int end) {
  const AttentionKernels& kernels = *best_attention_kernels(isa);
  const KvPage layout(args.k_type, args.v_type, args.head_dim);
  const ExactLayout exact_layout(args);
  const Writer writers[2] = {
      {kernels, KvSide::kKey, formats::require(args.k_type), args.head_dim, args.tcq},
      {kernels, KvSide::kValue, formats::require(args.v_type), args.head_dim, args.tcq}};
  for (int r = begin; r < end; ++r) {
    const graph::Row& row = args.rows[r];
    const graph::SequenceView& seq = args.sequences[size_t(row.seq)];
    const size_t cls = size_t(args.table_class), logical = size_t(row.pos / graph::kPageTokens);
    std::byte* page = args.pages + size_t(seq.page_table[cls][logical]) * args.page_bytes;
    std::byte* exact = args.exact.page_bytes ? args.exact.page(seq.exact_table[cls][logical]) : nullptr;
    const int token = row.pos % graph::kPageTokens ^ int(mutated(Mutation::kSlot));
    for (int h = 0; h < args.n_kv; ++h)
      for (const Writer& w : writers) {
        const bool key = w.side == KvSide::kKey;
        const float* x = (key ? args.k + int64_t(r) * args.k_stride : args.v + int64_t(r) * args.v_stride) +
                         int64_t(h) * args.head_dim;
        const bool stored =
            w.format.open_page()
                ? w.put_exact(x, token, exact + exact_layout.offset(h, w.side))
                : w.put(x, token, page + (key ? layout.key_offset(h) : layout.value_offset(h)));
        if (!stored) return r;
      }
  }
  return -1;
}

void commit_page(Isa isa, const AppendArgs& args, int seq, int logical, int kv_head, int side) {
  const DType type = side == 0 ? args.k_type : args.v_type;
  if (!formats::require(type).open_page()) return;
  const graph::SequenceView& view = args.sequences[size_t(seq)];
  const size_t cls = size_t(args.table_class);
  const KvSide kv_side = side == 0 ? KvSide::kKey : KvSide::kValue;
  const KvPage layout(args.k_type, args.v_type, args.head_dim);
  std::byte* page = args.pages + size_t(view.page_table[cls][size_t(logical)]) * args.page_bytes;
  const std::byte* exact =
      args.exact.page(view.exact_table[cls][size_t(logical)]) + ExactLayout(args).offset(kv_head, kv_side);
  best_attention_kernels(isa)->encode_page(
      type, kv_side, args.head_dim, exact,
      page + (side == 0 ? layout.key_offset(kv_head) : layout.value_offset(kv_head)), args.tcq);
}

}  // namespace kvasir::cpu
