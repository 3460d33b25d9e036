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

// A region has the codes of all rows, then their scales; a wire row has its own beside them. `move` gets both
// places of each piece: (offset in the region, offset in the wire rows, bytes).
template <typename Move>
void match_wire(KvForm form, size_t d, const Move& move) {
  if (form == KvForm::kQ8_0) {
    for (size_t block = 0; block < kRows * d / 32; ++block) {
      move(kRows * d + block * 2, block * 34, size_t(2));
      move(block * 32, block * 34 + 2, size_t(32));
    }
    return;
  }
  const size_t code_bytes = (size_t(region_bytes(form, int(d))) / kRows) - 2;
  for (size_t row = 0; row < kRows; ++row) {
    move(row * code_bytes, row * (code_bytes + 2), code_bytes);
    move(kRows * code_bytes + row * 2, row * (code_bytes + 2) + code_bytes, size_t(2));
  }
}

// Where one head's side of a page, or of an exact page, lies.
struct PageSide {
  KvForm form;
  bool wire;  // stored as planes: not as the rows are given
  size_t offset, bytes;
};

PageSide find_side(const graph::KvSpec& spec, PagePart part, int kv_head) {
  const bool values = part == PagePart::kValues || part == PagePart::kExactValues;
  const bool exact = part == PagePart::kExactKeys || part == PagePart::kExactValues;
  const KvForm k = form_of(spec.k_type), v = form_of(spec.v_type);
  const auto bytes_of = [&](KvForm form) {
    if (!exact) return size_t(region_bytes(form, spec.head_dim));
    return open_page(form) ? size_t(region_bytes(KvForm::kF16, spec.head_dim)) : 0;
  };
  const KvForm form = values ? v : k;
  return {form, !exact && open_page(form),
          size_t(kv_head) * (bytes_of(k) + bytes_of(v)) + (values ? bytes_of(k) : 0), bytes_of(form)};
}

}  // namespace

void read_cache_page(const graph::KvSpec& spec, PagePart part, int kv_head, const std::byte* page,
                     std::byte* rows, cudaStream_t stream) {
  const PageSide side = find_side(spec, part, kv_head);
  std::vector<std::byte> region(side.bytes);
  check(cudaMemcpyAsync(region.data(), page + side.offset, side.bytes, cudaMemcpyDeviceToHost, stream),
        "reading a cache page");
  check(cudaStreamSynchronize(stream), "reading a cache page");
  if (!side.wire) {
    std::memcpy(rows, region.data(), side.bytes);
    return;
  }
  match_wire(side.form, size_t(spec.head_dim), [&](size_t from, size_t to, size_t bytes) {
    std::memcpy(rows + to, region.data() + from, bytes);
  });
}

void write_cache_page(const graph::KvSpec& spec, PagePart part, int kv_head, std::byte* page,
                      const std::byte* rows, cudaStream_t stream) {
  const PageSide side = find_side(spec, part, kv_head);
  std::vector<std::byte> region(side.bytes);
  if (side.wire)
    match_wire(side.form, size_t(spec.head_dim), [&](size_t to, size_t from, size_t bytes) {
      std::memcpy(region.data() + to, rows + from, bytes);
    });
  else
    std::memcpy(region.data(), rows, side.bytes);
  check(cudaMemcpyAsync(page + side.offset, region.data(), side.bytes, cudaMemcpyHostToDevice, stream),
        "writing a cache page");
  check(cudaStreamSynchronize(stream), "writing a cache page");
}

}  // namespace kvasir::cuda
