// Pages of the cache to the host and back.
#pragma once
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/kernels/kv_forms/forms.h"
#include "backends/cuda/runtime/device.h"

namespace kvasir::cuda {

// As Backend::read_page and write_page say.
void read_cache_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                     std::byte* rows, cudaStream_t stream);
void write_cache_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, std::byte* page,
                      const std::byte* rows, cudaStream_t stream);
// What the types of one cache keep as data, on the device; `memory` keeps it.
KvTables upload_kv_tables(const graph::KvSpec& spec, std::vector<Memory>& memory);

}  // namespace kvasir::cuda
