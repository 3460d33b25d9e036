#include "graph/kv_layout.h"

#include <algorithm>

#include "formats/format.h"

namespace kvasir::graph {

size_t kv_page_bytes(const KvSpec& spec) {
  const size_t k = formats::require(spec.k_type).row_bytes(spec.head_dim);
  const size_t v = formats::require(spec.v_type).row_bytes(spec.head_dim);
  return size_t(spec.n_kv) * kPageTokens * (k + v);
}

int kv_pages(const KvSpec& spec, int n_ctx, int n_ubatch) {
  const int table = (n_ctx + kPageTokens - 1) / kPageTokens;
  if (spec.window == 0) return table;
  // The oldest visible key and the newest written one may both lie in partly used pages.
  const int ring = (spec.window - 1 + n_ubatch + kPageTokens - 1) / kPageTokens + 1;
  return std::min(table, ring);
}

size_t kv_exact_page_bytes(const KvSpec& spec) {
  const int sides = formats::require(spec.k_type).open_page() + formats::require(spec.v_type).open_page();
  return size_t(spec.n_kv) * kPageTokens * size_t(spec.head_dim) * sizeof(uint16_t) * size_t(sides);
}

int kv_exact_pages(const KvSpec& spec, int n_ctx) {
  if (kv_exact_page_bytes(spec) == 0) return 0;
  // A step starts with the pages its first row reads exactly and ends with those of its last.
  return std::min(spec.exact_first + 2 * (1 + spec.exact_last), (n_ctx + kPageTokens - 1) / kPageTokens);
}

size_t kv_total_bytes(std::span<const KvSpec> specs, int n_ctx, int n_ubatch, int n_seq) {
  size_t total = 0;
  for (const KvSpec& spec : specs)
    total += size_t(n_seq) * (kv_page_bytes(spec) * size_t(kv_pages(spec, n_ctx, n_ubatch)) +
                              kv_exact_page_bytes(spec) * size_t(kv_exact_pages(spec, n_ctx)));
  return total;
}

size_t kv_bytes_per_token(std::span<const KvSpec> specs) {
  size_t total = 0;
  for (const KvSpec& spec : specs)
    if (spec.window == 0) total += kv_page_bytes(spec) / kPageTokens;
  return total;
}

}  // namespace kvasir::graph
