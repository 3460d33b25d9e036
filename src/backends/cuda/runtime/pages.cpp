#include "backends/cuda/runtime/pages.h"

#include <cstring>
#include <vector>

#include "backends/cuda/kernels/kv_forms/dtypes.h"
#include "backends/cuda/kernels/kv_forms/wire.h"
#include "base/error.h"
#include "base/half.h"
#include "formats/format.h"
#include "formats/qjl1_256.h"
#include "formats/tcq_table.h"

namespace kvasir::cuda {

using backends::PagePart;

namespace {

KvForm form_of(DType type) {
  const auto form = kv_form(type);
  if (!form)
    fail(ErrorCode::kRefused, "cuda: a page of type {} cannot be read back", formats::require(type).name);
  return *form;
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
  region_to_wire(side.form, spec.head_dim, region.data(), rows);
}

void write_cache_page(const graph::KvSpec& spec, PagePart part, int kv_head, std::byte* page,
                      const std::byte* rows, cudaStream_t stream) {
  const PageSide side = find_side(spec, part, kv_head);
  std::vector<std::byte> region(side.bytes);
  if (side.wire)
    wire_to_region(side.form, spec.head_dim, rows, region.data());
  else
    std::memcpy(region.data(), rows, side.bytes);
  check(cudaMemcpyAsync(page + side.offset, region.data(), side.bytes, cudaMemcpyHostToDevice, stream),
        "writing a cache page");
  check(cudaStreamSynchronize(stream), "writing a cache page");
}

KvTables upload_kv_tables(const graph::KvSpec& spec, std::vector<Memory>& memory) {
  const auto upload = [&](const void* data, size_t bytes) {
    memory.emplace_back(bytes, Place::kDevice, "allocating tables of a cache type");
    memory.back().fill(data, bytes, "uploading a cache type's tables");
    return memory.back().as();
  };
  KvTables tables;
  if (spec.k_type == DType::qjl1_256) {
    const std::span projection(formats::qjl_projection(), size_t(128) * formats::kSketch);
    std::vector<uint16_t> halves;
    for (float p : projection) halves.push_back(f32_to_f16(p));
    tables.projection = static_cast<const float*>(upload(projection.data(), projection.size_bytes()));
    tables.projection_half =
        static_cast<const uint16_t*>(upload(halves.data(), halves.size() * sizeof(uint16_t)));
  }
  if (spec.k_type == DType::tbq3_tcq || spec.v_type == DType::tbq3_tcq) {
    const formats::TcqTable& table = spec.tcq ? *spec.tcq : formats::own_tcq_table();
    tables.tcq_level = static_cast<const float*>(upload(table.level.data(), sizeof(table.level)));
    tables.tcq_rounded = static_cast<const int8_t*>(upload(table.rounded.data(), sizeof(table.rounded)));
    tables.tcq_step = table.step;
  }
  return tables;
}

}  // namespace kvasir::cuda
