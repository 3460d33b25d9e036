#include "backends/cuda/runtime/pages.h"

#include <cstring>
#include <vector>

#include "backends/cuda/runtime/executable.h"
#include "base/error.h"
#include "formats/format.h"

namespace kvasir::cuda {

using backends::PagePart;

namespace {

constexpr size_t kRows = graph::kPageTokens;

KvForm form_of(DType type) {
  const auto form = kv_form(type);
  if (!form)
    fail(ErrorCode::kRefused, "cuda: a page of type {} cannot be read back", formats::require(type).name);
  return *form;
}

// A region has the codes of all rows, then their scales; a wire row has its own beside them.
void to_wire(KvForm form, size_t d, const std::byte* region, std::byte* rows) {
  if (form == KvForm::kQ8_0) {
    for (size_t block = 0; block < kRows * d / 32; ++block) {
      std::memcpy(rows + block * 34, region + kRows * d + block * 2, 2);
      std::memcpy(rows + block * 34 + 2, region + block * 32, 32);
    }
    return;
  }
  const size_t code_bytes = (size_t(region_bytes(form, int(d))) / kRows) - 2;
  for (size_t row = 0; row < kRows; ++row) {
    std::memcpy(rows + row * (code_bytes + 2), region + row * code_bytes, code_bytes);
    std::memcpy(rows + row * (code_bytes + 2) + code_bytes, region + kRows * code_bytes + row * 2, 2);
  }
}

}  // namespace

void read_cache_page(const graph::KvSpec& spec, PagePart part, int kv_head, const std::byte* page,
                     std::byte* rows, cudaStream_t stream) {
  const bool values = part == PagePart::kValues || part == PagePart::kExactValues;
  const bool exact = part == PagePart::kExactKeys || part == PagePart::kExactValues;
  const KvForm k = form_of(spec.k_type), v = form_of(spec.v_type);
  const auto bytes_of = [&](KvForm form) {
    if (!exact) return size_t(region_bytes(form, spec.head_dim));
    return open_page(form) ? size_t(region_bytes(KvForm::kF16, spec.head_dim)) : 0;
  };
  const size_t size = bytes_of(values ? v : k);
  const size_t at = size_t(kv_head) * (bytes_of(k) + bytes_of(v)) + (values ? bytes_of(k) : 0);
  std::vector<std::byte> region(size);
  check(cudaMemcpyAsync(region.data(), page + at, size, cudaMemcpyDeviceToHost, stream),
        "reading a cache page");
  check(cudaStreamSynchronize(stream), "reading a cache page");
  const KvForm form = values ? v : k;
  if (exact || !open_page(form))
    std::memcpy(rows, region.data(), size);
  else
    to_wire(form, size_t(spec.head_dim), region.data(), rows);
}

}  // namespace kvasir::cuda
