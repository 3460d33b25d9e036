// Variants, plans and dispatch of attention.
#include "backends/cpu/kernels/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/basis.h"
#include "formats/format.h"

namespace kvasir::cpu {

struct AttentionVariant {
  DType k, v;
  Isa isa;
  bool flash;
  const AttentionKernels* kernels;
  const KeyProducer* keys;            // flash only
  const ValueProducer* values;        // flash only
  const KeyProducer* exact_keys;      // of exact pages; null when keys are stored as they come
  const ValueProducer* exact_values;  // likewise
  std::string name;
};

#define KVASIR_ATTENTION_ISA(isa) extern const AttentionKernels kAttention_##isa;
#include "backends/cpu/kernels/attention/variants.def"
#undef KVASIR_ATTENTION_ISA

namespace {

constexpr const AttentionKernels* kKernels[] = {
#define KVASIR_ATTENTION_ISA(isa) &kAttention_##isa,
#include "backends/cpu/kernels/attention/variants.def"
#undef KVASIR_ATTENTION_ISA
};

constexpr DType kTypes[] = {
#define KVASIR_ATTENTION_TYPE(type) DType::type,
#include "backends/cpu/kernels/attention/variants.def"
#undef KVASIR_ATTENTION_TYPE
};

constexpr int kHeadDims[] = {
#define KVASIR_ATTENTION_HEAD_DIM(n) n,
#include "backends/cpu/kernels/attention/variants.def"
#undef KVASIR_ATTENTION_HEAD_DIM
};

// Rows in rising order of isa; built once, immutable.
const std::vector<AttentionVariant>& table() {
  static const std::vector<AttentionVariant> rows = [] {
    std::vector<AttentionVariant> out;
    for (const AttentionKernels* kernels : kKernels)
      for (DType k : kTypes)
        for (DType v : kTypes)
          for (bool flash : {true, false}) {
            const auto *kf = formats::find(k), *vf = formats::find(v);
            const KeyProducer* keys = kernels->keys(k);
            const ValueProducer* values = kernels->values(v);
            if (!kf || !vf || !kf->has_role(formats::kKeys) || !vf->has_role(formats::kValues)) continue;
            if (flash && (!keys || !values)) continue;
            out.push_back({k, v, kernels->isa, flash, kernels, keys, values,
                           kf->open_page() ? kernels->keys(DType::f16) : nullptr,
                           vf->open_page() ? kernels->values(DType::f16) : nullptr,
                           fmt::format("{}/{}.{}.{}", kf->name, vf->name, flash ? "flash" : "plain",
                                       isa_name(kernels->isa))});
          }
    return out;
  }();
  return rows;
}

std::string type_name(DType type) {
  const auto* format = formats::find(type);
  return format ? std::string(format->name) : fmt::format("type {}", uint32_t(type));
}

bool fits(DType type, int head_dim) {
  const auto* format = formats::find(type);
  return !format || format->takes(head_dim);
}

std::string explain(DType k, DType v, int head_dim) {
  std::string types, dims;
  for (DType type : kTypes)
    if (formats::find(type)) types += (types.empty() ? "" : " ") + type_name(type);
  for (int d : kHeadDims) dims += fmt::format("{}{}", dims.empty() ? "" : " ", d);
  std::string missing;
  const auto add = [&](const std::string& what) { missing += (missing.empty() ? "" : ", ") + what; };
  if (!std::ranges::count(kHeadDims, head_dim)) add(fmt::format("head size {}", head_dim));
  for (DType type : k == v ? std::vector{k} : std::vector{k, v})
    if (std::ranges::count(kTypes, type) && !fits(type, head_dim))
      add(fmt::format("{} at head size {} (multiples of {})", type_name(type), head_dim,
                      formats::require(type).block));
  if (std::ranges::count(kTypes, v) && formats::find(v) && !formats::find(v)->has_role(formats::kValues))
    add(fmt::format("V type {} (keys only)", type_name(v)));
  if (!std::ranges::count(kTypes, k) || !formats::find(k)) add(fmt::format("K type {}", type_name(k)));
  if (!std::ranges::count(kTypes, v) || !formats::find(v)) add(fmt::format("V type {}", type_name(v)));
  return fmt::format(
      "attention: required K {}, V {}, head size {}; supported K and V: {}; head sizes: {}; missing: {}",
      type_name(k), type_name(v), head_dim, types, dims, missing);
}

constexpr int kSplitRows = 128;  // query rows over all KV heads up to which the keys are split
constexpr int kSplitItems = 64;  // from as many on, chunks of a split are taken by spans
constexpr int kLeastItems = 16;  // fewer would not feed the threads

// How a flash call is cut. Everything follows from shapes and positions.
struct Cut {
  int n_rows;      // query rows a KV head
  int block_rows;  // query rows an item
  int n_blocks;
  int first_chunk, end_chunk;
  bool split;
  int unit;  // chunks a unit of a split: 1 or kSpanChunks
  int n_units;
  int n_together;  // units an item takes, so that queries are packed once for them
  int n_groups;    // of so many units

  int unit_begin(int u) const { return u == 0 ? first_chunk : (first_chunk / unit + u) * unit; }
  int unit_end(int u) const { return std::min(end_chunk, (first_chunk / unit + u + 1) * unit); }
};

int units(int first_chunk, int end_chunk, int unit) {
  return (end_chunk + unit - 1) / unit - first_chunk / unit;
}

Cut cut(const AttentionArgs& args) {
  Cut c{};
  c.n_rows = args.n_rows * (args.n_head / args.n_kv);
  c.split = c.n_rows * args.n_kv <= kSplitRows;
  const int wanted = (c.n_rows * args.n_kv / kLeastItems + 7) / 8 * 8;
  c.block_rows = c.split ? kBlockRows : std::clamp(wanted, 8, kBlockRows);
  c.n_blocks = (c.n_rows + c.block_rows - 1) / c.block_rows;
  c.first_chunk = visible(args, args.rows[0].pos).begin / kChunk;
  c.end_chunk = args.rows[args.n_rows - 1].pos / kChunk + 1;
  c.unit = 1;
  if (!c.split) return c;
  if (int64_t(c.end_chunk - c.first_chunk) * c.n_blocks * args.n_kv >= kSplitItems) c.unit = kSpanChunks;
  c.n_units = units(c.first_chunk, c.end_chunk, c.unit);
  const int64_t n_items = int64_t(c.n_units) * c.n_blocks * args.n_kv;
  c.n_together = c.unit == 1 ? int(std::clamp<int64_t>(n_items / kLeastItems, 1, kSpanChunks)) : 1;
  c.n_groups = (c.n_units + c.n_together - 1) / c.n_together;
  return c;
}

// Floats of the partial of one (KV head, block, unit).
size_t partial_floats(const Cut& c, int head_dim) {
  return size_t(std::min(c.block_rows, c.n_rows)) * (size_t(head_dim) + 2);
}

size_t round64(size_t n) { return (n + 63) / 64 * 64; }

size_t flash_thread_bytes(const AttentionVariant& variant, int head_dim) {
  const size_t exact = variant.exact_keys ? variant.exact_keys->query_bytes(head_dim) : 0;
  return round64(FlashScratch(variant.keys->query_bytes(head_dim), exact, head_dim).total);
}

// A tile and the scores of an item's rows, of at most `n_keys` keys each.
size_t plain_thread_bytes(const AttentionArgs& args, int rows, int n_keys) {
  const size_t scores = size_t(args.n_head / args.n_kv) * size_t(rows) * size_t(n_keys);
  return round64(sizeof(float) * (size_t(graph::kPageTokens) * args.head_dim + scores));
}

// How a plain call is cut: by the keys that its last row sees, the most of all.
struct PlainCut {
  int n_keys, rows, n_blocks;
  explicit PlainCut(const AttentionArgs& args) {
    const Visible last = visible(args, args.rows[args.n_rows - 1].pos);
    n_keys = last.end - last.begin;
    rows = plain_rows(args.n_head / args.n_kv, n_keys);
    n_blocks = (args.n_rows + rows - 1) / rows;
  }
};

}  // namespace

namespace {

template <formats::Basis basis>
constexpr Rotation kTo = [](formats::Role side, const float* x, float* out, int64_t n) {
  formats::to_basis(basis, side, x, out, n);
};
template <formats::Basis basis>
constexpr Rotation kFrom = [](formats::Role side, const float* r, float* out, int64_t n) {
  formats::from_basis(basis, side, r, out, n);
};

}  // namespace

Rotation to_basis_of(DType type, const AttentionKernels& kernels) {
  using formats::Basis;
  switch (formats::require(type).basis) {
    case Basis::kModel:
      return nullptr;
    case Basis::kHeadWide:
      return kernels.rotate;
    case Basis::kBlock32:
      return kTo<Basis::kBlock32>;
    case Basis::kBlock128:
      return kTo<Basis::kBlock128>;
    case Basis::kSignedBlock128:
      return kTo<Basis::kSignedBlock128>;
  }
  return nullptr;
}

Rotation from_basis_of(DType type, const AttentionKernels& kernels) {
  using formats::Basis;
  switch (formats::require(type).basis) {
    case Basis::kModel:
      return nullptr;
    case Basis::kHeadWide:
      return kernels.unrotate;
    case Basis::kBlock32:
      return kFrom<Basis::kBlock32>;
    case Basis::kBlock128:
      return kFrom<Basis::kBlock128>;
    case Basis::kSignedBlock128:
      return kFrom<Basis::kSignedBlock128>;
  }
  return nullptr;
}

Rotation query_rotation(DType k, Isa isa) { return to_basis_of(k, *best_attention_kernels(isa)); }

const AttentionKernels* best_attention_kernels(Isa isa) {
  const AttentionKernels* best = nullptr;
  for (const AttentionKernels* kernels : kKernels)
    if (kernels->isa <= isa) best = kernels;  // rows rise in isa
  return best;
}

const AttentionVariant* find_attention(DType k, DType v, int head_dim, Isa isa, bool flash,
                                       std::string* why) {
  const AttentionVariant* found = nullptr;
  if (std::ranges::count(kHeadDims, head_dim) && fits(k, head_dim) && fits(v, head_dim))
    for (const AttentionVariant& row : table())
      if (row.k == k && row.v == v && row.flash == flash && row.isa <= isa) found = &row;
  if (!found && why) *why = explain(k, v, head_dim);
  return found;
}

const char* attention_name(const AttentionVariant& variant) { return variant.name.c_str(); }

std::vector<AttentionInfo> attention_variants() {
  std::vector<AttentionInfo> out;
  for (const AttentionVariant& row : table())
    if (cpu_supports(row.isa)) out.push_back({&row, row.k, row.v, row.isa, row.flash});
  return out;
}

std::span<const int> attention_head_dims() { return kHeadDims; }

AttentionPlan plan_attention(const AttentionArgs& args) {
  AttentionPlan plan;
  if (args.n_rows == 0) return plan;
  if (!args.variant->flash) {
    const PlainCut cut(args);
    plan.n_items[0] = int64_t(cut.n_blocks) * args.n_kv;
    plan.thread_bytes = plain_thread_bytes(args, cut.rows, cut.n_keys);
    return plan;
  }
  const Cut c = cut(args);
  plan.n_items[0] = int64_t(args.n_kv) * c.n_blocks * (c.split ? c.n_groups : 1);
  plan.thread_bytes = flash_thread_bytes(*args.variant, args.head_dim);
  if (c.split) {
    plan.n_items[1] = int64_t(c.n_rows) * args.n_kv;
    plan.shared_bytes = round64(sizeof(float) * partial_floats(c, args.head_dim) * size_t(args.n_kv) *
                                size_t(c.n_blocks) * size_t(c.n_units));
  }
  return plan;
}

AttentionPlan bound_attention(const AttentionArgs& shape, int max_rows, int n_ctx) {
  AttentionPlan plan;
  const int keys = shape.window > 0 ? shape.window : n_ctx;
  if (!shape.variant->flash) {
    // Fewer keys take more rows an item, and as many scores at most.
    const size_t heads = size_t(shape.n_head / shape.n_kv);
    const size_t scores =
        std::max(heads * size_t(keys), std::min(size_t(1) << 20, kPlainRows * heads * size_t(keys)));
    plan.thread_bytes =
        round64(sizeof(float) * (size_t(graph::kPageTokens) * size_t(shape.head_dim) + scores));
    return plan;
  }
  plan.thread_bytes = flash_thread_bytes(*shape.variant, shape.head_dim);
  const int rows = std::min(kSplitRows, max_rows * shape.n_head);
  // n consecutive positions touch up to n / 256 + 2 chunks.
  const int chunks = (keys + kSplitRows) / kChunk + 2;
  const size_t row_floats = size_t(shape.head_dim) + 2;
  const size_t by_chunk = size_t(std::min(chunks * rows, kSplitItems * std::min(rows, kBlockRows)));
  const size_t by_span = size_t(chunks / kSpanChunks + 2) * size_t(rows + kBlockRows);
  plan.shared_bytes = round64(sizeof(float) * row_floats * std::max(by_chunk + kBlockRows, by_span));
  return plan;
}

namespace {

// Where the partial of (KV head, block, unit) lies.
float* partial_at(const AttentionArgs& args, const Cut& c, std::byte* shared, int kv_head, int block,
                  int unit) {
  const size_t index = (size_t(kv_head) * c.n_blocks + block) * c.n_units + unit;
  return reinterpret_cast<float*>(shared) + index * partial_floats(c, args.head_dim);
}

void run_flash(const AttentionArgs& args, const Cut& c, int64_t index, std::byte* shared,
               std::byte* scratch) {
  const AttentionVariant& variant = *args.variant;
  FlashItem item{};
  item.args = &args;
  item.keys = variant.keys;
  item.values = variant.values;
  item.exact_keys = variant.exact_keys;
  item.exact_values = variant.exact_values;
  item.key_row = formats::require(variant.k).row_bytes(args.head_dim);
  item.rotate = args.q_rotated ? nullptr : to_basis_of(variant.k, *variant.kernels);
  item.unrotate = from_basis_of(variant.v, *variant.kernels);
  const int group_heads = args.n_head / args.n_kv;
  int block, unit = 0;
  if (c.split) {
    unit = int(index % c.n_groups) * c.n_together;
    block = int(index / c.n_groups % c.n_blocks);
    item.kv_head = int(index / c.n_groups / c.n_blocks);
  } else {
    block = c.n_blocks - 1 - int(index / args.n_kv);  // later rows see more keys: longest items first
    item.kv_head = int(index % args.n_kv);
  }
  item.row = block * c.block_rows;
  item.n_rows = std::min(c.block_rows, c.n_rows - item.row);
  const int first = args.rows[item.row / group_heads].pos;
  const int last = args.rows[(item.row + item.n_rows - 1) / group_heads].pos;
  item.chunk_begin = visible(args, first).begin / kChunk;
  item.chunk_end = last / kChunk + 1;
  if (c.split) {
    item.n_parts = std::min(c.n_together, c.n_units - unit);
    item.part_chunk = c.unit_begin(unit);
    item.chunk_begin = std::max(item.chunk_begin, item.part_chunk);
    item.chunk_end = std::min(item.chunk_end, c.unit_end(unit + item.n_parts - 1));
    item.partial = partial_at(args, c, shared, item.kv_head, block, unit);
    item.part_stride = partial_floats(c, args.head_dim);
  }
  variant.kernels->flash(item, scratch);
}

void run_merge(const AttentionArgs& args, const Cut& c, int64_t index, std::byte* shared,
               std::byte* scratch) {
  const int kv_head = int(index / c.n_rows), row = int(index % c.n_rows);
  const int block = row / c.block_rows, in_block = row % c.block_rows;
  const int rows = std::min(c.block_rows, c.n_rows - block * c.block_rows);
  const int group_heads = args.n_head / args.n_kv;
  const float* base = partial_at(args, c, shared, kv_head, block, 0);
  const int64_t head = int64_t(kv_head) * group_heads + row % group_heads;
  float* result = args.out + int64_t(row / group_heads) * args.out_stride + head * args.head_dim;
  args.variant->kernels->merge(
      {args.head_dim, c.first_chunk, c.unit, c.n_units, base + in_block, base + rows + in_block,
       base + 2 * rows + size_t(in_block) * args.head_dim, partial_floats(c, args.head_dim), result,
       args.variant->values->stripes, from_basis_of(args.variant->v, *args.variant->kernels)},
      scratch);
}

}  // namespace

void run_attention(const AttentionArgs& args, const AttentionPlan&, int phase, int64_t item,
                   std::byte* shared, std::byte* thread_scratch) {
  if (!args.variant->flash) {
    // Later rows see more keys: longest items first.
    const PlainCut cut(args);
    const int row = (cut.n_blocks - 1 - int(item / args.n_kv)) * cut.rows;
    const PlainItem plain{&args,
                          args.variant->k,
                          args.variant->v,
                          int(item % args.n_kv),
                          row,
                          std::min(cut.rows, args.n_rows - row)};
    args.variant->kernels->plain(plain, thread_scratch);
    return;
  }
  const Cut c = cut(args);
  if (phase == 0)
    run_flash(args, c, item, shared, thread_scratch);
  else
    run_merge(args, c, item, shared, thread_scratch);
}

}  // namespace kvasir::cpu
