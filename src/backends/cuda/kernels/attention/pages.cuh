// Where keys and values lie, and one value of them.
#pragma once
#include "backends/cuda/kernels/attention/attention.h"
#include "backends/cuda/kernels/kv_forms/load.cuh"

namespace kvasir::cuda {

inline constexpr int kPage = graph::kPageTokens;

// One head's keys or values of one page, as it is to be read.
struct Region {
  const uint8_t* data;
  KvForm form;  // kF16 for an exact page
};

__device__ __forceinline__ Region find_region(const KvView& kv, const StepView& step, int seq, int query_page,
                                              int page, int head, int side) {
  const KvForm form = side ? kv.v_form : kv.k_form;
  const int32_t* tables = step.tables + (int64_t(seq) * 4 + (kv.window > 0 ? 2 : 0)) * step.table_stride;
  const bool exact = page == query_page || page < kv.exact_first || query_page - page <= kv.exact_last;
  if (open_page(form) && exact) {
    const int index = tables[step.table_stride + page];
    if (index >= 0) {
      const int64_t one = int64_t(kPage) * kv.head_dim * 2;
      const int64_t k = open_page(kv.k_form) ? one : 0, v = open_page(kv.v_form) ? one : 0;
      const uint8_t* base = index < kv.n_exact
                                ? kv.exact + index * kv.exact_page_bytes
                                : kv.step_exact + int64_t(index - kv.n_exact) * kv.exact_page_bytes;
      return {base + head * (k + v) + (side ? k : 0), KvForm::kF16};
    }
  }
  const int64_t k = region_bytes(kv.k_form, kv.head_dim), v = region_bytes(kv.v_form, kv.head_dim);
  return {kv.pages + tables[page] * kv.page_bytes + head * (k + v) + (side ? k : 0), form};
}

__device__ inline float region_value(const Region& from, int d, int token, int i, const KvTables& tables) {
  const int64_t at = int64_t(token) * d + i;
  switch (from.form) {
    case KvForm::kF32:
      return reinterpret_cast<const float*>(from.data)[at];
    case KvForm::kF16:
      return __half2float(reinterpret_cast<const __half*>(from.data)[at]);
    case KvForm::kBf16:
      return __uint_as_float(uint32_t(reinterpret_cast<const uint16_t*>(from.data)[at]) << 16);
    default:
      return coded_value(from.form, from.data, d, token, i, tables);
  }
}

// Pages of a row's visible keys that part `split` of `n_splits` takes: [begin, end).
struct PageRange {
  int begin, end;
};
__device__ __forceinline__ PageRange split_pages(int first_pos, int pos, int split, int n_splits) {
  const int first = first_pos / kPage, n = pos / kPage - first + 1;
  const int each = (n + n_splits - 1) / n_splits;
  return {first + min(n, split * each), first + min(n, (split + 1) * each)};
}
__device__ __forceinline__ int first_visible(const KvView& kv, const SequenceInfo& seq, int pos) {
  const int first = seq.first_pos[kv.window > 0];
  return kv.window > 0 ? max(first, pos - kv.window + 1) : first;
}

}  // namespace kvasir::cuda
