#include "measure_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "backends/registry/registry.h"
#include "graph/kv_layout.h"
#include "probe.h"

namespace kvasir::app {
namespace {

using graph::kPageTokens;

constexpr int kRows = 512;  // of a prompt's step
constexpr int kNormWidth = 5376;
constexpr int kRuns = 4;  // of a figure, the quickest counts
constexpr double kSliceSeconds = 0.004;
constexpr size_t kPoolBytes = size_t(1) << 30;  // of pages; many times what a device caches

constexpr double kLeast = 1e-18;  // seconds: a figure of 0 would read as not measured

// Seconds that one more unit takes when `few` and `many` of them took these.
struct Line {
  double start = 0, each = 0;
  Line(double few, double few_seconds, double many, double many_seconds) {
    each = std::max((many_seconds - few_seconds) / (many - few), kLeast);
    start = std::max(few_seconds - few * each, kLeast);
  }
};

// Products as a layer chains them: a norm and a wide matrix, then back; so many that no cache holds them.
struct ProductChain {
  int width, wide;
  double values() const { return double(width) * double(wide); }
};
constexpr ProductChain kSmall{1536, 2048}, kLarge{5376, 21504};
constexpr size_t kChainBytes = size_t(192) << 20;

struct ProductTimes {
  double one = 0, prompt = 0;  // seconds of a product
};

ProductTimes product_times(const std::string& backend, const formats::Format& format,
                           const ProductChain& chain, double idle) {
  const auto device = backends::create_backend(backend, 1);  // lets the matrices go
  std::vector<std::byte> up = some_weights(format, chain.width, chain.wide),
                         down = some_weights(format, chain.wide, chain.width);
  const int pairs = int(kChainBytes / (up.size() + down.size())) + 1;
  Draft draft;
  graph::ValueId x = draft.look_up(chain.width, kPageTokens);
  for (int i = 0; i < pairs; ++i) {
    const graph::WeightId a = draft.weight(format.type, chain.width, chain.wide, up),
                          b = draft.weight(format.type, chain.wide, chain.width, down);
    x = draft.matmul(draft.matmul(draft.norm(x), a), b);
  }
  Steps steps(*device, draft, kRows);
  const auto of = [&](int n_rows) {
    const double best = quick_seconds(kSliceSeconds, kRuns, [&] { steps.run(0, n_rows); });
    return std::max(best - idle, 1e-9) / (2 * pairs);
  };
  return {of(1), of(kRows)};
}

void measure_products(const std::string& backend, double idle, decide::WeightCost& row) {
  const formats::Format& format = formats::require(row.type);
  const ProductTimes small = product_times(backend, format, kSmall, idle),
                     large = product_times(backend, format, kLarge, idle);
  const double bytes = double(format.row_bytes(format.block)) / format.block;  // a value
  const Line one(bytes * kSmall.values(), small.one, bytes * kLarge.values(), large.one),
      prompt(2.0 * kRows * kSmall.values(), small.prompt, 2.0 * kRows * kLarge.values(), large.prompt);
  row = {row.type, 1e-9 / one.each, 1e-9 / prompt.each, one.start * 1e6, prompt.start * 1e6};
}

// Layers of heads, cache write and attention, all of them with the same rows.
class LayerChain {
 public:
  LayerChain(backends::Backend& backend, std::byte* pool, const AttentionJob& job, int n_kv, int window,
             int n_layers)
      : backend_(backend), window_(window) {
    const int d = job.head_dim, heads = job.heads * n_kv;
    Draft draft;
    const graph::ValueId q = draft.look_up(heads * d, kPageTokens),
                         key = draft.look_up(n_kv * d, kPageTokens),
                         value = draft.look_up(n_kv * d, kPageTokens);
    draft.graph.ropes.push_back({.base = 10000, .n_rot = d, .freq_factors = {}});
    for (int i = 0; i < n_layers; ++i) {
      draft.graph.kv.push_back(
          {.layer = i, .head_dim = d, .n_kv = n_kv, .window = window, .k_type = job.k, .v_type = job.v});
      add_layer(draft, i, rope(draft, q, heads, d), rope(draft, key, n_kv, d), value, heads);
    }
    const graph::KvSpec& spec = draft.graph.kv[0];
    page_bytes_ = graph::kv_page_bytes(spec);
    const size_t each = kPoolBytes / size_t(n_layers) / 4096 * 4096;
    n_pages_ = int(each / page_bytes_);
    for (int i = 0; i < n_layers; ++i) {
      kv_.data.push_back(pool + size_t(i) * each);
      kv_.n_pages.push_back(std::max(n_pages_, kMostPages));  // sizes tables; pages come round again
      const size_t exact = graph::kv_exact_page_bytes(spec);
      kv_.exact.push_back(exact ? backend.alloc(exact) : nullptr);
      kv_.n_exact.push_back(exact ? 1 : 0);
    }
    has_exact_ = kv_.exact[0] != nullptr;
    steps_ = std::make_unique<Steps>(backend, draft, kRows, kv_);
    fill();
  }
  ~LayerChain() {
    steps_.reset();
    for (std::byte* exact : kv_.exact)
      if (exact) backend_.free(exact);
  }
  LayerChain(const LayerChain&) = delete;

  // One row behind `n_keys` stored tokens, in the middle of a page.
  double one_row(int n_keys) {
    return quick_seconds(kSliceSeconds, kRuns, [&] { run(n_keys + kPageTokens / 2, 1); });
  }
  double prompt(int depth) {
    return quick_seconds(0, kRuns, [&] { run(depth, kRows); });
  }

  static constexpr int kMostPages = 2048;

 private:
  static graph::ValueId rope(Draft& draft, graph::ValueId x, int n_head, int head_dim) {
    const graph::ValueId out = draft.value(n_head * head_dim);
    graph::Op& op = draft.push(graph::OpKind::rope);
    op.in[0] = x;
    op.n_head = n_head;
    op.head_dim = head_dim;
    op.rope = 0;
    return op.out = out;
  }
  static void add_layer(Draft& draft, int layer, graph::ValueId q, graph::ValueId key, graph::ValueId value,
                        int heads) {
    const int head_dim = draft.graph.kv[size_t(layer)].head_dim;
    const graph::ValueId normed = draft.norm(value);
    draft.graph.ops.back().head_dim = head_dim;
    graph::Op& append = draft.push(graph::OpKind::kv_append);
    append.in = {key, normed, graph::kNone};
    append.kv = append.layer = layer;
    const graph::ValueId out = draft.value(heads * head_dim);
    graph::Op& attention = draft.push(graph::OpKind::attention);
    attention.in[0] = q;
    attention.out = out;
    attention.scale = 1.0f / 16;
    attention.n_head = heads;
    attention.head_dim = head_dim;
    attention.kv = attention.layer = layer;
  }
  void run(int first, int n_rows) {
    const size_t n = size_t((first + n_rows - 1) / kPageTokens + 1);
    std::vector<int32_t> table(n), exact(n, -1);
    for (int32_t& page : table) page = int32_t(next_++ % n_pages_);
    if (has_exact_)  // the open page; those that the step fills lie in its own memory
      for (size_t page = size_t(first / kPageTokens); page < n; ++page)
        exact[page] = n_rows == 1 ? 0 : int32_t(1 + page) - first / kPageTokens;
    graph::SequenceView view;
    const size_t of_class = window_ > 0 ? 1 : 0;
    view.page_table[of_class] = table;
    view.exact_table[of_class] = exact;
    steps_->run(first, n_rows, view);
  }
  void fill() {
    next_ = 0;
    run(0, kRows);
    for (std::byte* pages : kv_.data)
      for (int filled = kRows / kPageTokens; filled < n_pages_; filled *= 2)
        backend_.copy(pages + size_t(filled) * page_bytes_, pages,
                      size_t(std::min(filled, n_pages_ - filled)) * page_bytes_);
  }

  backends::Backend& backend_;
  int window_, n_pages_ = 0;
  size_t page_bytes_ = 0;
  bool has_exact_ = false;
  backends::KvBuffers kv_;
  std::unique_ptr<Steps> steps_;
  int64_t next_ = 0;
};

// What one layer of a chain takes. What a step takes besides (embeddings, its start and end) is the same for
// every type: it is found once for a shape, with f16, whose kernels are quick enough to tell.
using Measure = std::function<std::vector<double>(LayerChain&)>;
class LayerTimes {
 public:
  LayerTimes(backends::Backend& device, std::byte* pool) : device_(device), pool_(pool) {}

  std::vector<double> operator()(const AttentionJob& job, int n_kv, int window, const Measure& measure) {
    std::vector<double>& besides = besides_[{job.head_dim, job.heads, n_kv, window}];
    if (besides.empty()) {
      const AttentionJob f16{DType::f16, DType::f16, job.head_dim, job.heads};
      besides = of_layers(f16, n_kv, window, 1, measure);
      const std::vector<double> all = of_layers(f16, n_kv, window, kLayers, measure);
      for (size_t i = 0; i < all.size(); ++i)
        besides[i] = std::max((kLayers * besides[i] - all[i]) / (kLayers - 1), 0.0);
    }
    std::vector<double> seconds = of_layers(job, n_kv, window, kLayers, measure);
    for (size_t i = 0; i < seconds.size(); ++i)
      seconds[i] = std::max((seconds[i] - besides[i]) / kLayers, 1e-9);
    return seconds;
  }

 private:
  static constexpr int kLayers = 5;
  std::vector<double> of_layers(const AttentionJob& job, int n_kv, int window, int n_layers,
                                const Measure& measure) {
    LayerChain chain(device_, pool_, job, n_kv, window, n_layers);
    return measure(chain);
  }

  backends::Backend& device_;
  std::byte* pool_;
  // By head size, heads of a KV head, KV heads, window.
  std::map<std::array<int, 4>, std::vector<double>> besides_;
};

constexpr int kNear = 256, kFar = 4096, kWindow = 1024, kManyHeads = 4;
// Of kFar keys, and of a prompt: kernels for which shallower depths must do.
constexpr double kSlowSeconds = 1e-4, kSlowPromptSeconds = 3e-4;

decide::AttentionCost measure_attention(LayerTimes& layer_seconds, const AttentionJob& job) {
  decide::AttentionCost row{job.k, job.v, job.head_dim, job.heads};
  const auto single = layer_seconds(job, 1, 0, [](LayerChain& c) {
    return std::vector<double>{c.one_row(kNear), c.prompt(0), c.one_row(kFar)};
  });
  const int deep = single[2] > kSlowSeconds ? 4 * kFar : 65536,
            depth = single[1] > kSlowPromptSeconds ? 1024 : 8192;
  const auto many = layer_seconds(job, kManyHeads, 0, [&](LayerChain& c) {
    return std::vector<double>{c.one_row(kFar), c.one_row(deep), c.prompt(0), c.prompt(depth)};
  });
  const auto window = layer_seconds(
      job, kManyHeads, kWindow, [](LayerChain& c) { return std::vector<double>{c.one_row(2 * kWindow)}; });
  const Line keys(double(kFar) * kManyHeads, many[0], double(deep) * kManyHeads, many[1]);
  row.ns_per_key = keys.each * 1e9;
  row.far_start_us = keys.start * 1e6;
  row.start_us = std::max(single[0] - keys.each * kNear, kLeast) * 1e6;
  row.window_start_us = std::max(window[0] - keys.each * kWindow * kManyHeads, kLeast) * 1e6;
  const double own = double(kRows) * (kRows + 1) / 2, behind = double(kRows) * depth;
  const double prompt = std::max((many[3] - many[2]) / (behind * kManyHeads), kLeast);
  row.prompt_ns = prompt * 1e9;
  const Line stored(kRows, single[1] - prompt * own, double(kRows) * kManyHeads,
                    many[2] - prompt * own * kManyHeads);
  row.append_ns = stored.each * 1e9;
  row.prompt_start_us = stored.start * 1e6;
  return row;
}

// The lesser of each figure of two rounds.
void take_best(decide::AttentionCost& best, const decide::AttentionCost& row) {
  using Cost = decide::AttentionCost;
  for (const auto figure : {&Cost::ns_per_key, &Cost::prompt_ns, &Cost::append_ns, &Cost::start_us,
                            &Cost::window_start_us, &Cost::far_start_us, &Cost::prompt_start_us})
    best.*figure = std::min(best.*figure, row.*figure);
}

}  // namespace

void measure_device(backends::Backend& device, decide::MachineTable& table, int rounds,
                    const std::function<void(double)>& progress) {
  const backends::Caps caps = device.caps();
  const double idle = idle_seconds(device);
  const Line norms(1, norm_seconds(device, kNormWidth, 1, idle), kRows,
                   norm_seconds(device, kNormWidth, kRows, idle));
  table.op_us = norms.start * 1e6;
  table.value_ns = norms.each / kNormWidth * 1e9;
  const std::vector<AttentionJob> jobs = attention_jobs(caps);
  const double n = double(rounds) * double(jobs.size() + caps.weight_types.size());
  double done = 0;
  for (int round = 0; round < rounds; ++round) {
    std::byte* pool = device.alloc(kPoolBytes);
    LayerTimes layer_seconds(device, pool);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const decide::AttentionCost row = measure_attention(layer_seconds, jobs[i]);
      if (round == 0)
        table.attention.push_back(row);
      else
        take_best(table.attention[i], row);
      progress(++done / n);
    }
    device.free(pool);
    for (size_t i = 0; i < caps.weight_types.size(); ++i) {
      decide::WeightCost row{caps.weight_types[i]};
      measure_products(table.backend, idle, row);
      if (round == 0)
        table.weights.push_back(row);
      else if (row.gb_per_s > table.weights[i].gb_per_s)
        table.weights[i] = row;
      progress(++done / n);
    }
  }
}

}  // namespace kvasir::app
