// Pages of the cache back on the host.
#pragma once
#include "backends/backend.h"
#include "backends/cuda/runtime/device.h"

namespace kvasir::cuda {

// As Backend::read_page says.
void read_cache_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                     std::byte* rows, cudaStream_t stream);

}  // namespace kvasir::cuda
