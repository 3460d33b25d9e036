#include "cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "backends/cuda/kernels/attention/attention.h"
#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/kernels/kv_append/kv_append.h"
#include "backends/cuda/kernels/matvec/matvec.h"
#include "backends/cuda/kernels/near/near.h"
#include "backends/cuda/kernels/weights/weights.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/runtime/pages.h"
#include "base/half.h"
#include "cuda/device.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::bench {

using namespace kvasir::cuda;
using graph::kPageTokens;

namespace {

struct Geometry {
  const char* name;
  int n_head, n_kv, head_dim, window;
};
constexpr Geometry k31bGlobal{"31B global", 32, 4, 512, 0}, k31bSliding{"31B sliding", 32, 16, 256, 1024},
    k12bSliding{"12B sliding", 16, 8, 256, 1024}, kE2bGlobal{"E2B global", 8, 1, 512, 0},
    kE2bSliding{"E2B sliding", 8, 1, 256, 512};
constexpr size_t kBeyondCache = size_t(512) << 20;  // what calls rotate through, so that L2 holds none of it

// One page's bytes: random codes, scales that keep values near 1.
std::vector<uint8_t> page_pattern(const KvView& kv) {
  std::vector<uint8_t> page;
  for (int head = 0; head < kv.n_kv; ++head)
    for (KvForm form : {kv.k_form, kv.v_form}) {
      const RegionPlanes planes(form, kv.head_dim);
      const size_t values = size_t(kPageTokens * kv.head_dim);
      std::vector<uint8_t> region = form == KvForm::kF16    ? half_normals(values, 1)
                                    : form == KvForm::kBf16 ? std::vector<uint8_t>(2 * values, 0x3e)  // 0.186
                                    : form == KvForm::kF32  ? float_normals(values, 1)
                                                            : random_bytes(size_t(planes.bytes()));
      const float size = form == KvForm::kQ8_0                            ? 0.01f
                         : form == KvForm::kQ4_0 || form == KvForm::kQ5_0 ? 0.1f
                         : trellis(form)                                  ? 0.03f
                         : form == KvForm::kQ4Polar                       ? 11.0f
                                                                          : 0.9f;
      const uint16_t half = f32_to_f16(size);
      const uint16_t scale = form == KvForm::kQjl1_256 ? 0x4130 : half;  // bf16 11
      const size_t n = size_t(scales_of_row(form, kv.head_dim)) * kPageTokens;
      for (size_t i = 0; i < n; ++i)
        std::memcpy(
            &region[form == KvForm::kTbq3Tcq ? i * kTcqBlockBytes : size_t(planes.scales_at()) + 2 * i],
            &scale, 2);
      page.insert(page.end(), region.begin(), region.end());
    }
  return page;
}

// Caches of one shape, each as deep as asked; sequence i reads cache i.
class Caches {
 public:
  Caches(const Geometry& g, DType k, DType v, int depth, int n_rows, size_t bytes) : depth_(depth) {
    kv.k_form = *kv_form(k), kv.v_form = *kv_form(v);
    kv.n_kv = g.n_kv, kv.head_dim = g.head_dim, kv.window = g.window;
    const graph::KvSpec spec{0, g.head_dim, g.n_kv, g.window, k, v};
    kv.page_bytes = int64_t(graph::kv_page_bytes(spec));
    kv.exact_page_bytes = int64_t(graph::kv_exact_page_bytes(spec));
    kv.tables = upload_kv_tables(spec, memory_);
    const int visible = g.window > 0 ? std::min(depth, g.window + n_rows + kPageTokens) : depth;
    const int n_pages = (depth + kPageTokens - 1) / kPageTokens,
              held = (visible + kPageTokens - 1) / kPageTokens;
    const size_t one = size_t(kv.page_bytes) * size_t(held);
    count = int(std::clamp<size_t>((bytes + one - 1) / one, 1, 64));
    memory_.push_back(repeat(page_pattern(kv), one * size_t(count)));
    kv.pages = memory_.back().as<uint8_t>();
    // The rows' own pages, and as in a model the first of a global cache.
    const int own_pages = n_rows / kPageTokens + 2;
    int exact_pages = own_pages;
    if (kv.exact_page_bytes > 0) {
      kv.exact_first = g.window > 0 ? 0 : std::min(graph::kSinkTokens / kPageTokens, n_pages - own_pages);
      kv.exact_first = std::max(kv.exact_first, 0);
      exact_pages += kv.exact_first;
      memory_.push_back(repeat(half_normals(1 << 16, 1), size_t(kv.exact_page_bytes) * size_t(exact_pages)));
      kv.exact = kv.step_exact = memory_.back().as<uint8_t>();
      kv.n_exact = exact_pages;
    }
    std::vector<int32_t> tables(size_t(count) * 4 * size_t(n_pages), -1);
    for (int s = 0; s < count; ++s)
      for (int p = 0; p < n_pages; ++p) {
        int32_t* at = tables.data() + (size_t(s) * 4 + (g.window > 0 ? 2 : 0)) * size_t(n_pages) + p;
        at[0] = s * held + p % held;
        const int from_end = n_pages - 1 - p;
        if (kv.exact_page_bytes == 0) continue;
        at[n_pages] = from_end < own_pages ? from_end : p < kv.exact_first ? own_pages + p : -1;
      }
    upload(tables, step.tables);
    step.table_stride = n_pages;
    std::vector<graph::Row> rows;
    for (int s = 0; s < count; ++s)
      for (int r = 0; r < n_rows; ++r) rows.push_back({0, depth - n_rows + r, s, 0});
    upload(rows, step.rows);
    const std::vector<SequenceInfo> sequences(static_cast<size_t>(count));
    upload(sequences, step.sequences);
  }

  template <typename T>
  void upload(const std::vector<T>& from, const T*& to) {
    memory_.emplace_back(from.size() * sizeof(T), Place::kDevice, "allocating benchmark data");
    check(cudaMemcpy(memory_.back().as(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
          "filling");
    to = memory_.back().as<T>();
  }
  StepView step_of(int cache, int n_rows) const {
    StepView view = step;
    view.rows += int64_t(cache) * n_rows;
    return view;
  }
  int depth() const { return depth_; }

  KvView kv;
  StepView step;
  int count = 1;

 private:
  int depth_;
  std::vector<Memory> memory_;
};

void measure_attention(Device& device, const Geometry& g, DType k, DType v, int depth, int n_rows) {
  const std::string name = n_rows == 1 ? "attention decode" : "attention prefill";
  const std::string shape =
      fmt::format("{}, {} q / {} kv x {}{}, {}/{}, depth {}{}", g.name, g.n_head, g.n_kv, g.head_dim,
                  g.window ? fmt::format(" window {}", g.window) : "", formats::require(k).name,
                  formats::require(v).name, depth, n_rows > 1 ? fmt::format(", {} rows", n_rows) : "");
  if (!device.wanted(name, shape)) return;
  Caches caches(g, k, v, depth, n_rows, n_rows == 1 ? kBeyondCache : 1);
  AttentionArgs args;
  args.kv = caches.kv;
  args.n_head = g.n_head, args.n_rows = n_rows;
  const int pages = g.window ? (g.window - 1) / kPageTokens + 2 : (depth + kPageTokens - 1) / kPageTokens;
  args.max_pages = pages;
  args.scale = 1.0f / float(g.head_dim);
  args.settled = n_rows == 1;
  const AttentionKernel kernel = choose_attention(args.kv, n_rows, true, device.portable());
  args.n_splits = attention_splits(args.kv, g.n_head, n_rows, pages, kernel);
  const size_t width = size_t(g.n_head) * size_t(g.head_dim), parts = size_t(n_rows * args.n_splits);
  const Memory q = repeat(float_normals(1 << 16, 1), width * size_t(n_rows) * 4);
  const Memory out(width * size_t(n_rows) * 4, Place::kDevice, "allocating benchmark data");
  const Memory partial(width * parts * 4, Place::kDevice, "allocating benchmark data");
  const Memory sums(parts * size_t(g.n_head) * 8, Place::kDevice, "allocating benchmark data");
  const int last = depth - 1, first = g.window ? std::max(0, depth - n_rows - g.window + 1) : 0;
  const int first_page = first / kPageTokens, end_page = last / kPageTokens + 1;
  const bool tiles = kernel == AttentionKernel::kPrompt && needs_page_tiles(args.kv);
  const int capacity =
      std::min(end_page - first_page, int((256 << 20) / page_tile_bytes(g.head_dim) / page_tiles(args.kv)));
  const size_t n_tiles = tiles ? size_t(capacity) * size_t(page_tiles(args.kv)) : 1;
  const Memory page_tiles(n_tiles * size_t(page_tile_bytes(g.head_dim)), Place::kDevice,
                          "allocating benchmark data");
  const Memory units(n_tiles * 4, Place::kDevice, "allocating benchmark data");
  if (tiles)
    args.expanded = {
        page_tiles.as<uint8_t>(), units.as<float>(), capacity, 0, first_page, end_page, first, last};
  args.expanded.newest = last;
  args.q = q.as<float>(), args.out = out.as<float>();
  args.partial = partial.as<float>(), args.partial_sums = sums.as<float>();
  double pairs = 0;
  for (int p = depth - n_rows; p < depth; ++p) pairs += g.window ? std::min(g.window, p + 1) : p + 1;
  const double seen_pages = end_page - first_page;
  const double bytes = seen_pages * double(caches.kv.page_bytes);
  device.row(name, shape, bytes, 4.0 * g.head_dim * pairs * g.n_head, std::max(4, caches.count),
             [&](const Launch& how, int i) {
               args.expanded.sequence = i % caches.count;
               attend(how, args, caches.step_of(i % caches.count, n_rows), kernel, [&] {
                 return Launch{how.stream, true};
               });
             });
}

// Heads, cache write, attention and merge of one row as one launch.
void measure_near(Device& device, const Geometry& g, DType type, int depth) {
  const std::string shape =
      fmt::format("{}, {} q / {} kv x {}{}, {}, depth {}", g.name, g.n_head, g.n_kv, g.head_dim,
                  g.window ? fmt::format(" window {}", g.window) : "", formats::require(type).name, depth);
  const int keys = g.window ? std::min(g.window, depth) : depth;
  if (!device.wanted("near", shape)) return;
  Caches caches(g, type, type, depth, 1, kBeyondCache);
  if (keys > near_keys(caches.kv)) return;
  const size_t width = size_t(g.n_head) * size_t(g.head_dim);
  const Memory x = repeat(float_normals(1 << 16, 1), width * 4),
               turns = repeat(float_normals(1 << 12, 0.5f), 1 << 14);
  const Memory out(width * 4, Place::kDevice, "allocating benchmark data");
  const Memory fault = repeat(std::vector<uint8_t>(8, 0xff), 8);
  NearArgs args;
  args.kv = caches.kv;
  args.heads.kv = caches.kv;
  args.heads.head_dim = g.head_dim;
  args.heads.fault = fault.as<int32_t>();
  args.heads.n_jobs = 3;
  for (int j = 0; j < 3; ++j) {
    HeadJob& job = args.heads.jobs[j];
    job.in = job.w = x.as<float>();
    job.n_head = j == 0 ? g.n_head : g.n_kv;
    job.side = j - 1;
    job.norm = true;
    if (j < 2) job.turns = turns.as<float>(), job.n_pairs = job.half = g.head_dim / 2, job.max_rows = 1;
    job.basis = basis_of(args.kv.k_form);
  }
  args.n_head = g.n_head, args.n_rows = 1, args.scale = 1.0f / float(g.head_dim);
  args.out = out.as<float>();
  args.one_row = true;
  if (!has_near(args)) return;
  const double bytes = double(keys) / kPageTokens * double(caches.kv.page_bytes);
  device.row("near", shape, bytes, 4.0 * g.head_dim * keys * g.n_head, std::max(4, caches.count),
             [&](const Launch& how, int i) { attend_near(how, args, caches.step_of(i % caches.count, 1)); });
}

void measure_append(Device& device, const Geometry& g, DType type, int n_rows) {
  const std::string shape =
      fmt::format("{}, {} kv x {}, {}, {} row{}", g.name, g.n_kv, g.head_dim, formats::require(type).name,
                  n_rows, n_rows == 1 ? " that fills a page" : "s");
  if (!device.wanted("kv_append", shape)) return;
  Geometry flat = g;
  flat.window = 0;
  Caches caches(flat, type, type, 1024, n_rows, kBeyondCache);
  const size_t width = size_t(g.n_kv) * size_t(g.head_dim);
  const Memory x = repeat(float_normals(1 << 16, 1), width * size_t(n_rows) * 4);
  const Memory fault = repeat(std::vector<uint8_t>(8, 0xff), 8);
  HeadArgs args;
  args.kv = caches.kv;
  args.head_dim = g.head_dim;
  args.fault = fault.as<int32_t>();
  args.n_jobs = 2;
  for (int side = 0; side < 2; ++side) {
    args.jobs[side].in = x.as<float>();
    args.jobs[side].n_head = g.n_kv;
    args.jobs[side].side = side;
  }
  const double values = 2.0 * double(width) * n_rows;
  const double written = double(caches.kv.page_bytes) / kPageTokens * (n_rows == 1 ? kPageTokens : n_rows);
  device.row("kv_append", shape, values * 4 + written, 0, std::max(4, caches.count),
             [&](const Launch& how, int i) {
               const StepView step = caches.step_of(i % caches.count, n_rows);
               run_heads(how, args, step, n_rows, n_rows == 1);
               if (needs_encode(args.kv, n_rows == 1))
                 encode_pages({how.stream, true}, args, step, n_rows, n_rows == 1);
             });
}

// A matrix in the device's planes; as many copies as calls must rotate through.
struct Matrices {
  std::vector<MatrixView> views;
  std::vector<Memory> memory;
  double bytes = 0;
  Matrices(DType type, int n_in, int n_out, size_t least) {
    MatrixView view;
    view.form = weight_form(type);
    view.n_in = n_in, view.n_out = n_out;
    const PlaneBytes planes = plane_bytes(view.form, n_in, n_out);
    bytes = double(planes.codes + planes.high + planes.aux + planes.aux2);
    std::vector<uint8_t> codes =
        view.form == WeightForm::kF16 ? half_normals(1 << 20, 0.02f) : random_bytes(1 << 20);
    if (view.form == WeightForm::kBf16) {  // upper halves of f32
      const std::vector<uint8_t> floats = float_normals(codes.size() / 2, 0.02f);
      for (size_t i = 0; i < codes.size(); i += 2) std::memcpy(&codes[i], &floats[2 * i + 2], 2);
    }
    const std::vector<uint8_t> scales(1 << 10, 0x0c);  // f16 2.4e-4
    const int count = std::clamp(int(double(least) / bytes) + 1, 1, 256);
    const auto plane = [&](int64_t size, const std::vector<uint8_t>& pattern) -> const uint8_t* {
      if (size == 0) return nullptr;
      memory.push_back(repeat(pattern, size_t(size)));
      return memory.back().as<uint8_t>();
    };
    for (int i = 0; i < count; ++i) {
      view.codes = plane(planes.codes, codes);
      view.high = plane(planes.high, codes);
      view.aux = plane(planes.aux, scales);
      view.aux2 = plane(planes.aux2, scales);
      views.push_back(view);
    }
  }
};

void measure_matvec(Device& device, DType type, int n_in, int n_out, int n_rows) {
  const std::string shape = fmt::format("{} {} -> {}, {} row{}", formats::require(type).name, n_in, n_out,
                                        n_rows, n_rows > 1 ? "s" : "");
  if (!device.wanted("matvec", shape)) return;
  const Matrices matrices(type, n_in, n_out, kBeyondCache);
  const Memory x = repeat(float_normals(1 << 16, 1), size_t(n_in) * size_t(n_rows) * 4);
  const Memory q(size_t(n_in) * size_t(n_rows), Place::kDevice, "allocating benchmark data");
  const Memory meta(size_t(n_in) * size_t(n_rows) / 4, Place::kDevice, "allocating benchmark data");
  const Memory out(size_t(n_out) * size_t(n_rows) * 4, Place::kDevice, "allocating benchmark data");
  MatvecArgs args;
  args.n_in = n_in, args.n_rows = n_rows, args.x = x.as<float>();
  args.quant = {q.as<int8_t>(), meta.as<GroupMeta>()};
  args.parts[0].n_out = n_out, args.parts[0].out = out.as<float>();
  bool made = false;
  device.row("matvec", shape, matrices.bytes, 2.0 * n_in * n_out * n_rows, int(matrices.views.size()),
             [&](const Launch& how, int i) {
               if (!made) quantize_rows(how, args.x, n_in, n_rows, args.quant);
               made = true;
               args.parts[0].w = matrices.views[size_t(i) % matrices.views.size()];
               matvec(how, args);
             });
}

// What a step of one row runs: of a gated pair both matrices. A graph takes long to start beside one launch.
constexpr int kLeastCalls = 24;
void measure_stream(Device& device, DType type, int n_in, int n_out, bool pair) {
  const std::string shape =
      fmt::format("{} {} -> {}{}", formats::require(type).name, n_in, n_out, pair ? ", gated pair" : "");
  if (!device.wanted("one row", shape)) return;
  const Matrices matrices(type, n_in, n_out, kBeyondCache);
  const Memory x = repeat(float_normals(1 << 16, 1), size_t(n_in) * 4);
  const Memory out(size_t(n_out) * 4, Place::kDevice, "allocating benchmark data");
  StreamArgs args;
  MatvecArgs& product = args.product;
  product.n_in = n_in, product.n_rows = 1, product.x = x.as<float>();
  product.parts[0].n_out = n_out, product.parts[0].out = out.as<float>();
  const auto view = [&](int i) { return matrices.views[size_t(i) % matrices.views.size()]; };
  product.parts[0].w = view(0);
  if (!can_stream(product)) return;
  // Long rows are those that a gated pair leaves, as groups for the most part.
  const Memory q(size_t(n_in), Place::kDevice, "allocating benchmark data"),
      meta(size_t(n_in) / 4, Place::kDevice, "allocating benchmark data");
  if (!pair && n_in >= 6144) {
    product.quant = {q.as<int8_t>(), meta.as<GroupMeta>()};
    MatvecArgs before;
    before.n_in = n_out, before.n_rows = 1;
    before.parts[0].w = before.parts[0].w2 = view(0);
    before.parts[0].n_out = n_in;
    args.made_groups = stream_groups(before);
    quantize_rows({}, product.x, n_in, 1, product.quant);
  }
  const int sides = pair ? 2 : 1;
  device.row("one row", shape, sides * matrices.bytes, 2.0 * sides * n_in * n_out,
             std::max(kLeastCalls, int(matrices.views.size()) / sides), [&](const Launch& how, int i) {
               product.parts[0].w = view(sides * i);
               if (pair) product.parts[0].w2 = view(sides * i + 1);
               args.large = i % 2 == 0;
               stream_matvec(how, args);
             });
}

// Matrices of the same rows in one launch; `pair`: a gated pair.
void measure_gemm(Device& device, DType type, int n_in, const std::vector<int>& outs, int n_rows,
                  bool pair = false) {
  const int n_out = std::accumulate(outs.begin(), outs.end(), 0), sides = pair ? 2 : 1;
  const std::string shape = fmt::format("{} {} -> {}{}, {} rows", formats::require(type).name, n_in,
                                        fmt::join(outs, " + "), pair ? ", gated pair" : "", n_rows);
  if (!device.wanted("gemm", shape)) return;
  std::deque<Matrices> matrices;
  for (int n : outs) matrices.emplace_back(type, n_in, n, 200 << 20);
  const Memory x = repeat(float_normals(1 << 16, 1), size_t(n_in) * size_t(n_rows) * 4);
  const Memory half(size_t(n_in) * size_t(padded_gemm_rows(n_rows)) * 2, Place::kDevice,
                    "allocating benchmark data");
  const Memory scale(size_t(n_rows) * 4, Place::kDevice, "allocating benchmark data");
  const Memory out(size_t(n_out) * size_t(n_rows) * 4, Place::kDevice, "allocating benchmark data");
  const Memory shares = repeat(std::vector<uint8_t>(4096), gemm_share_bytes());
  const bool expand = gemm_expands(matrices[0].views[0], device.portable());
  const Memory expanded(expand ? size_t(n_in) * size_t(n_out) * 2 : 16, Place::kDevice,
                        "allocating benchmark data");
  GemmArgs args;
  args.x = half.as<uint16_t>(), args.x_scale = scale.as<float>();
  args.portable = device.portable();
  args.shares = shares.as<uint8_t>();
  args.expanded = expanded.as<uint16_t>(), args.expanded_values = expanded.size() / 2;
  args.n_rows = n_rows, args.n_in = n_in, args.n_parts = int(outs.size());
  double bytes = 2.0 * n_in * n_rows + 4.0 * n_out * n_rows;
  float* to = out.as<float>();
  for (size_t i = 0; i < outs.size(); ++i) {
    args.parts[i].out = to;
    args.parts[i].n_out = args.parts[i].out_stride = outs[i];
    args.parts[i].gelu = pair;
    to += size_t(outs[i]) * size_t(n_rows);
    bytes += matrices[i].bytes * sides;
  }
  size_t calls = 1;
  for (const Matrices& m : matrices) calls = std::max(calls, m.views.size());
  bool made = false;
  device.row(
      "gemm", shape, bytes, 2.0 * sides * n_in * n_out * n_rows, int(std::min<size_t>(calls, 64)),
      [&](const Launch& how, int i) {
        if (!made)
          gemm_rows(how, x.as<float>(), n_in, n_rows, device.portable(), half.as<uint16_t>(),
                    scale.as<float>());
        made = true;
        for (size_t p = 0; p < outs.size(); ++p) {
          const std::vector<MatrixView>& views = matrices[p].views;
          args.parts[p].w = views[size_t(i) % views.size()];
          if (pair) args.parts[p].w2 = views[size_t(i + 1) % views.size()];
        }
        bool first = true;
        gemm([&] { return Launch{how.stream, std::exchange(first, false) ? how.overlap : true}; }, args);
      });
}

const std::vector<DType> kTypes{DType::f16, DType::q8_0, DType::tbq4_h, DType::tbq3_h, DType::tbq2_h};

void measure_one_row_attention(Device& device) {
  using enum DType;
  std::vector<DType> decoded = kTypes;
  decoded.insert(decoded.end(), {tbq4_ht, tbq3_ht, tbq2_ht, bf16, f32, q4_0, q5_0, tbq4_0, tbq3_0});
  for (DType t : decoded) measure_attention(device, k31bGlobal, t, t, 131072, 1);
  for (DType t : decoded) measure_attention(device, kE2bGlobal, t, t, 32768, 1);
  for (int depth : {1024, 8192})
    for (DType t : {f16, bf16, f32, q8_0, tbq4_h, tbq3_h, tbq3_ht})
      measure_attention(device, kE2bGlobal, t, t, depth, 1);
  for (DType t : {f16, bf16, f32, q8_0, tbq4_h, tbq3_h}) {
    measure_attention(device, kE2bSliding, t, t, 32768, 1);
    measure_attention(device, k31bSliding, t, t, 32768, 1);
  }
  for (DType t : {f16, bf16, q8_0, tbq4_h, tbq3_h, tbq4_ht, tbq3_ht, tbq4_0, tbq3_tcq, q4_0})
    for (auto [geometry, depth] : {std::pair{kE2bSliding, 128},
                                   {kE2bSliding, 32768},
                                   {kE2bSliding, 32805},  // a window that begins within a page
                                   {kE2bGlobal, 512},
                                   {k12bSliding, 32768},
                                   {k31bSliding, 600},
                                   {k31bSliding, 32768}})
      measure_near(device, geometry, t, depth);
}

void measure_prompt_attention(Device& device) {
  using enum DType;
  const std::vector<DType> prompt_types{f16,     bf16,    f32,     q8_0,   tbq4_h,   tbq3_h,   tbq2_h,
                                        tbq4_ht, tbq3_ht, tbq2_ht, tbq4_0, tbq3_tcq, q4_polar, q4_0};
  for (DType t : prompt_types) measure_attention(device, k31bGlobal, t, t, 32768, 512);
  measure_attention(device, k31bGlobal, qjl1_256, tbq3_0, 32768, 512);
  for (DType t : {f16, tbq4_h, tbq4_ht}) measure_attention(device, kE2bGlobal, t, t, 32768, 512);
  for (DType t : {f16, tbq4_h})  // rows that begin within a page
    measure_attention(device, kE2bGlobal, t, t, 32773, 512);
  Geometry wide = k31bSliding;
  wide.name = "31B, head 256, no window", wide.window = 0;
  for (DType t : kTypes) measure_attention(device, wide, t, t, 16384, 512);
  for (DType t : {f16, bf16, f32, tbq4_h, tbq4_ht}) measure_attention(device, k31bSliding, t, t, 16384, 512);
  for (DType t : {f16, bf16, f32, tbq4_h}) measure_attention(device, kE2bSliding, t, t, 16384, 512);
  for (DType t : kTypes) {
    measure_append(device, k31bGlobal, t, 1);
    measure_append(device, k31bGlobal, t, 512);
  }
}

void measure_one_row_products(Device& device) {
  using enum DType;
  for (DType t : {q8_0, q4_k, q6_k}) {
    measure_matvec(device, t, 1536, 12288, 1);
    measure_matvec(device, t, 12288, 1536, 1);
    measure_matvec(device, t, 5376, 21504, 1);
    measure_matvec(device, t, 5376, 21504, 8);
  }
  for (DType t : {q8_0, q4_k, q5_k, q6_k}) {
    measure_stream(device, t, 1536, 6144, true);
    measure_stream(device, t, 1536, 12288, true);
    measure_stream(device, t, 12288, 1536, false);
    measure_stream(device, t, 5376, 8192, false);
    measure_stream(device, t, 8192, 5376, false);
    measure_stream(device, t, 5376, 21504, true);
    measure_stream(device, t, 21504, 5376, false);
    measure_stream(device, t, 5376, 262144, false);
    measure_stream(device, t, 1536, 262144, false);
    measure_stream(device, t, 2048, 1536, false);
    measure_stream(device, t, 6144, 1536, false);
    measure_stream(device, t, 5376, 12288, false);
    measure_stream(device, t, 5376, 4096, false);
  }
}

void measure_prompt_products(Device& device) {
  using enum DType;
  // E2B: queries, output, gate or up, down, per-layer gate; 31B: queries, keys, output, gate or up, down.
  for (DType t : {f16, q8_0, q4_k}) {
    measure_gemm(device, t, 1536, {2048, 256, 256}, 512);
    measure_gemm(device, t, 1536, {2048}, 512);
    measure_gemm(device, t, 2048, {1536}, 512);
    measure_gemm(device, t, 1536, {6144}, 512, true);
    measure_gemm(device, t, 1536, {6144}, 512);
    measure_gemm(device, t, 6144, {1536}, 512);
    measure_gemm(device, t, 1536, {256}, 512);
    measure_gemm(device, t, 256, {1536}, 512);
    measure_gemm(device, t, 5376, {8192, 4096}, 512);
    measure_gemm(device, t, 5376, {8192}, 512);
    measure_gemm(device, t, 5376, {4096}, 512);
    measure_gemm(device, t, 8192, {5376}, 512);
    measure_gemm(device, t, 5376, {21504}, 512, true);
    measure_gemm(device, t, 5376, {21504}, 512);
    measure_gemm(device, t, 21504, {5376}, 512);
  }
  for (DType t : {q6_k, q5_k, bf16, q5_0, q5_1, q4_1, iq4_nl, iq4_xs, q3_k})
    measure_gemm(device, t, 21504, {5376}, 512);
  measure_gemm(device, q4_k, 5376, {21504}, 64);
  measure_gemm(device, f16, 8192, {8192}, 8192);
}

}  // namespace

void run_cuda_kernels(const KernelOptions& options) {
  Device device(options);
  device.print_head();
  measure_one_row_attention(device);
  measure_prompt_attention(device);
  measure_one_row_products(device);
  measure_prompt_products(device);
}

}  // namespace kvasir::bench
