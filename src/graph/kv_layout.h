// Sizes of the KV cache: the exact formula that the allocator, `info` and `decide` share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace kvasir::graph {

// Tokens at the start of the context that global layers keep exact unless told otherwise. Every query weighs the
// first tokens (attention sinks), so an error in their keys is in every score: on Gemma-3-270M one exact page
// takes half of what a 4-bit cache costs (docs/benchmarks.md).
inline constexpr int kSinkTokens = 64;

// Bytes of one 64-token page of a cache: for each KV head all keys, then all values.
size_t kv_page_bytes(const KvSpec& spec);
// Pages one sequence needs so that `n_ctx` positions are stored (global), or the window survives while a
// micro-batch is written (sliding).
int kv_pages(const KvSpec& spec, int n_ctx, int n_ubatch);
// Bytes of one exact page: for each KV head 64 keys, then 64 values, as f16; only the sides whose type
// encodes whole pages.
size_t kv_exact_page_bytes(const KvSpec& spec);
// Exact pages a sequence keeps between steps, and while one runs; 0 when neither side encodes whole pages.
int kv_exact_pages(const KvSpec& spec, int n_ctx);
// What is exact depends on positions only: does a query of page `query` read page `key` as it was before
// encoding?
inline bool reads_exact(int exact_first, int exact_last, int query, int key) {
  return key == query || key < exact_first || query - key <= exact_last;
}
inline bool reads_exact(const KvSpec& spec, int query, int key) {
  return reads_exact(spec.exact_first, spec.exact_last, query, key);
}
// Total bytes of all caches for n_seq sequences.
size_t kv_total_bytes(std::span<const KvSpec> specs, int n_ctx, int n_ubatch, int n_seq);
// Bytes added a token beyond every window (global caches only).
size_t kv_bytes_per_token(std::span<const KvSpec> specs);

}  // namespace kvasir::graph
