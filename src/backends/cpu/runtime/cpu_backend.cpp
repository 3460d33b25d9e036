#include "backends/cpu/runtime/cpu_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "backends/cpu/kernels/attention/kv_page.h"
#include "backends/cpu/runtime/executable.h"
#include "base/error.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

// One head's side of a page, or of an exact page.
struct PageRegion {
  DType type;
  KvSide side;
  size_t offset, row_bytes;
};

PageRegion page_region(const graph::KvSpec& spec, backends::PagePart part, int kv_head) {
  using backends::PagePart;
  const bool key = part == PagePart::kKeys || part == PagePart::kExactKeys;
  PageRegion at{key ? spec.k_type : spec.v_type, key ? KvSide::kKey : KvSide::kValue, 0, 0};
  if (part == PagePart::kExactKeys || part == PagePart::kExactValues) {
    const size_t region = sizeof(uint16_t) * size_t(graph::kPageTokens) * size_t(spec.head_dim);
    const bool after_keys = !key && formats::require(spec.k_type).open_page();
    at.type = DType::f16;
    at.offset =
        graph::kv_exact_page_bytes(spec) / size_t(spec.n_kv) * size_t(kv_head) + (after_keys ? region : 0);
  } else {
    const KvPage layout(spec.k_type, spec.v_type, spec.head_dim);
    at.offset = key ? layout.key_offset(kv_head) : layout.value_offset(kv_head);
  }
  at.row_bytes = formats::require(at.type).row_bytes(spec.head_dim);
  return at;
}

backends::Caps caps_of(Isa isa) {
  backends::Caps caps;
  caps.name = "cpu";
  caps.device = cpu_name();
  caps.isa = isa_name(isa);
  caps.uuid = cpu_identity();
  caps.memory_bytes = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  const auto variants = attention_variants();
  for (const formats::Format& format : formats::all()) {
    if (find_matmul(format.type, isa)) caps.weight_types.push_back(format.type);
    if (std::ranges::any_of(variants,
                            [&](const AttentionInfo& a) { return a.k == format.type || a.v == format.type; }))
      caps.kv_types.push_back(format.type);
  }
  for (int head_dim : {64, 128, 256, 512})
    if (find_attention(DType::f16, DType::f16, head_dim, isa, true, nullptr))
      caps.head_dims.push_back(head_dim);
  return caps;
}

class CpuBackend final : public backends::Backend {
 public:
  CpuBackend(int n_threads, Isa isa) : pool_(n_threads), isa_(isa), caps_(caps_of(isa)) {}

  backends::Caps caps() const override { return caps_; }

  std::byte* alloc(size_t bytes) override {
    AlignedBuffer buffer(bytes);
    std::byte* data = buffer.data();
    if (data) buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void free(std::byte* buffer) override { buffers_.erase(buffer); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  void read_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                 std::byte* rows) override {
    const PageRegion at = page_region(spec, part, kv_head);
    for (int token = 0; token < graph::kPageTokens; ++token)
      unpack_row(at.type, at.side, spec.head_dim, page + at.offset, token,
                 rows + size_t(token) * at.row_bytes);
  }

  void write_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, std::byte* page,
                  const std::byte* rows) override {
    const PageRegion at = page_region(spec, part, kv_head);
    for (int token = 0; token < graph::kPageTokens; ++token)
      pack_row(at.type, at.side, spec.head_dim, rows + size_t(token) * at.row_bytes, token, page + at.offset);
  }

  void upload(const graph::Graph& graph, const backends::DropSource& drop,
              const std::function<void(float)>& progress) override {
    weights_ = prepare_weights(graph, isa_, pool_, drop, progress);
  }

  std::unique_ptr<backends::Executable> compile(const graph::Graph& graph,
                                                const backends::Decisions& decisions,
                                                const backends::KvBuffers& kv, int max_rows) override {
    return std::make_unique<CpuExecutable>(graph, weights_, decisions, kv, max_rows, isa_, pool_);
  }

 private:
  ThreadPool pool_;
  Isa isa_;
  backends::Caps caps_;
  std::vector<PreparedWeight> weights_;
  std::unordered_map<std::byte*, AlignedBuffer> buffers_;
};

}  // namespace

std::unique_ptr<backends::Backend> create_backend(int n_threads, Isa isa) {
  return std::make_unique<CpuBackend>(n_threads, isa);
}

}  // namespace kvasir::cpu
