// Sizes of the KV cache: the exact formula that the allocator, `info` and `decide` share.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/graph.h"

namespace kvasir::graph {

// Bytes of one 64-token page of a cache: for each KV head all keys, then all values.
size_t kv_page_bytes(const KvSpec& spec);
// Pages one sequence needs so that `n_ctx` positions are stored (global), or the window survives while a micro-batch is
// written (sliding).
int kv_pages(const KvSpec& spec, int n_ctx, int n_ubatch);
// Total bytes of all caches for n_seq sequences.
size_t kv_total_bytes(std::span<const KvSpec> specs, int n_ctx, int n_ubatch, int n_seq);
// Bytes added a token beyond every window (global caches only).
size_t kv_bytes_per_token(std::span<const KvSpec> specs);

}  // namespace kvasir::graph
