#include "measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "backends/cpu/roofline.h"
#include "backends/registry/registry.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "graph/kv_layout.h"
#include "machine.h"
#include "version.h"

namespace kvasir::app {
namespace {

using Clock = std::chrono::steady_clock;
using graph::kPageTokens;

constexpr double kRooflineSeconds = 0.6;
constexpr size_t kWorkBytes = size_t(256) << 20;  // no cache that a program has for itself holds this
constexpr double kSliceSeconds = 0.03;            // of one figure
constexpr int kKeys = 8192;                       // a depth at which attention is nearly all of its step
constexpr int kNormOps = 64;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The quickest of many runs: neighbours on a shared machine slow the others.
double quick_seconds(double budget, const std::function<void()>& run) {
  run();
  double best = 1e30;
  const auto begin = Clock::now();
  for (int i = 0; i < 8 || seconds_since(begin) < budget; ++i) {
    const auto start = Clock::now();
    run();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

std::vector<float> random_floats(size_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// A graph under construction: look-ups give every op its input.
struct Draft {
  graph::Graph graph;
  std::vector<std::vector<float>> tables;

  graph::ValueId value(int width) {
    graph.values.push_back({"v" + std::to_string(graph.values.size()), width, graph::RowSet::kAll});
    return graph::ValueId(graph.values.size() - 1);
  }
  graph::Op& push(graph::OpKind kind) {
    graph::Op op;
    op.kind = kind;
    op.layer = 0;
    op.eps = 1e-6f;
    graph.ops.push_back(op);
    return graph.ops.back();
  }
  graph::WeightId weight(DType type, int64_t n_in, int64_t n_out, std::span<const std::byte> data) {
    graph.weights.push_back({"w" + std::to_string(graph.weights.size()), type, n_in, n_out, data, -1});
    return graph::WeightId(graph.weights.size() - 1);
  }
  graph::ValueId look_up(int width, int rows) {
    tables.push_back(random_floats(size_t(width) * size_t(rows)));
    const graph::WeightId w = weight(DType::f32, width, rows, std::as_bytes(std::span(tables.back())));
    const graph::ValueId out = value(width);
    graph::Op& op = push(graph::OpKind::embed);
    op.w[0] = w;
    op.out = out;
    return out;
  }
};

double op_seconds(backends::Backend& backend) {
  Draft draft;
  draft.tables.reserve(1);
  graph::ValueId x = draft.look_up(1536, 1);
  for (int i = 0; i < kNormOps; ++i) {
    const graph::ValueId y = draft.value(1536);
    graph::Op& op = draft.push(graph::OpKind::norm);
    op.in[0] = x;
    op.out = x = y;
  }
  backend.upload(draft.graph, {}, {});
  const auto executable = backend.compile(draft.graph, {}, {}, 1);
  const graph::Row row{0, 0, 0, 0};
  const graph::SequenceView view;
  const double all = quick_seconds(kSliceSeconds, [&] {
    backend.submit(*executable, {{&row, 1}, {&view, 1}});
    backend.inspect(*executable, x);  // waits
  });
  return all / (kNormOps + 1);
}

// 1e9 bytes/s of weights that one row passes through.
double weight_rate(backends::Backend& backend, const formats::Format& format) {
  constexpr int kWidth = 2048;
  const size_t row_bytes = format.row_bytes(kWidth);
  const int64_t n_out = int64_t(kWorkBytes / row_bytes) / 64 * 64;
  // Few rows encoded, then repeated: what they hold does not matter for speed.
  constexpr int64_t kPoolRows = 16;
  const std::vector<float> values = random_floats(size_t(kPoolRows) * kWidth);
  std::vector<std::byte> pool(size_t(kPoolRows) * row_bytes), data(size_t(n_out) * row_bytes);
  format.encode(values.data(), pool.data(), kPoolRows * kWidth);
  for (int64_t row = 0; row < n_out; row += kPoolRows)
    std::copy_n(pool.begin(), size_t(std::min(kPoolRows, n_out - row)) * row_bytes,
                data.begin() + row * int64_t(row_bytes));
  Draft draft;
  draft.tables.reserve(1);
  const graph::ValueId x = draft.look_up(kWidth, 1), y = draft.value(int(n_out));
  const graph::WeightId w = draft.weight(format.type, kWidth, n_out, data);
  graph::Op& op = draft.push(graph::OpKind::matmul);
  op.in[0] = x;
  op.w[0] = w;
  op.out = y;
  backend.upload(draft.graph, {}, {});
  const auto executable = backend.compile(draft.graph, {}, {}, 1);
  const graph::Row row{0, 0, 0, 0};
  const graph::SequenceView view;
  const double seconds = quick_seconds(2 * kSliceSeconds, [&] {
    backend.submit(*executable, {{&row, 1}, {&view, 1}});
    backend.inspect(*executable, y);
  });
  return double(data.size()) / seconds / 1e9;
}

// One attention op over a cache that is rotated through so that no step finds it in a cache of the processor.
class AttentionProbe {
 public:
  AttentionProbe(backends::Backend& backend, std::byte* pages, DType k, DType v, int head_dim, int heads)
      : backend_(backend), pages_(pages) {
    draft_.tables.reserve(3);
    const graph::ValueId q = draft_.look_up(heads * head_dim, kPageTokens),
                         key = draft_.look_up(head_dim, kPageTokens),
                         value = draft_.look_up(head_dim, kPageTokens);
    draft_.graph.kv.push_back(
        {.layer = 0, .head_dim = head_dim, .n_kv = 1, .window = 0, .k_type = k, .v_type = v});
    graph::Op& append = draft_.push(graph::OpKind::kv_append);
    append.in = {key, value, graph::kNone};
    append.n_head = 1;
    append.head_dim = head_dim;
    append.kv = 0;
    out_ = draft_.value(heads * head_dim);
    graph::Op& attention = draft_.push(graph::OpKind::attention);
    attention.in[0] = q;
    attention.out = out_;
    attention.scale = 1.0f / 16;
    attention.n_head = heads;
    attention.head_dim = head_dim;
    attention.kv = 0;
    page_bytes_ = graph::kv_page_bytes(draft_.graph.kv[0]);
    n_pages_ = int(std::min<size_t>(kWorkBytes / page_bytes_, 4096));
    exact_bytes_ = graph::kv_exact_page_bytes(draft_.graph.kv[0]);
    exact_ = exact_bytes_ ? backend_.alloc(exact_bytes_) : nullptr;
    backend_.upload(draft_.graph, {}, {});
    executable_ =
        backend_.compile(draft_.graph, {}, {{pages_}, {n_pages_}, {exact_}, {exact_ ? 1 : 0}}, kPageTokens);
    fill();
  }
  ~AttentionProbe() {
    executable_.reset();
    if (exact_) backend_.free(exact_);
  }
  AttentionProbe(const AttentionProbe&) = delete;

  // Deep and shallow steps in turn, so that a change of the machine's speed meets both. Infinite where a
  // step's start hides the keys.
  double ns_per_key() {
    double deep = 1e30, shallow = 1e30;
    const auto begin = Clock::now();
    for (int i = 0; seconds_since(begin) < (i < 8 ? 8 : 1) * kSliceSeconds; ++i) {
      deep = std::min(deep, seconds(kKeys));
      shallow = std::min(shallow, seconds(kPageTokens));
    }
    if (deep < 2 * shallow) return std::numeric_limits<double>::infinity();
    return (deep - shallow) / double(kKeys - kPageTokens) * 1e9;
  }

 private:
  // The last token of `n_keys` lies in the middle of an open page.
  double seconds(int n_keys) {
    const int n_table = n_keys / kPageTokens;
    std::vector<int32_t> table(static_cast<size_t>(n_table)), exact(static_cast<size_t>(n_table), -1);
    for (int32_t& page : table) page = int32_t(next_++ % n_pages_);
    if (exact_) exact.back() = 0;
    const auto start = Clock::now();
    step(n_keys - kPageTokens / 2, 1, table, exact);
    return seconds_since(start);
  }
  void fill() {
    step(0, kPageTokens, {0}, {exact_ ? 0 : -1});
    for (int i = 1; i < n_pages_; ++i) backend_.copy(pages_ + size_t(i) * page_bytes_, pages_, page_bytes_);
  }
  void step(int pos, int n_rows, const std::vector<int32_t>& table, const std::vector<int32_t>& exact) {
    std::vector<graph::Row> rows;
    for (int i = 0; i < n_rows; ++i) rows.push_back({i, pos + i, 0, 0});
    graph::SequenceView view;
    view.page_table[0] = table;
    view.exact_table[0] = exact;
    backend_.submit(*executable_, {rows, {&view, 1}});
    backend_.inspect(*executable_, out_);
  }

  backends::Backend& backend_;
  std::byte* pages_;
  Draft draft_;
  graph::ValueId out_ = graph::kNone;
  size_t page_bytes_ = 0, exact_bytes_ = 0;
  int n_pages_ = 0;
  std::byte* exact_ = nullptr;
  std::unique_ptr<backends::Executable> executable_;
  int64_t next_ = 1;
};

struct Job {
  DType k, v;
  int head_dim, heads;
};

// Every type with itself, and types of keys alone beside q8_0 values, at the head sizes models have.
std::vector<Job> attention_jobs(const backends::Caps& caps) {
  std::vector<Job> jobs;
  for (const DType type : caps.kv_types) {
    const formats::Format& format = formats::require(type);
    const DType v = format.has_role(formats::kValues) ? type : DType::q8_0;
    for (const int head_dim : caps.head_dims)
      if (head_dim >= 128 && format.takes(head_dim))
        for (const int heads : {2, 8}) jobs.push_back({type, v, head_dim, heads});
  }
  return jobs;
}

void measure_limits(decide::MachineTable& table) {
  if (table.backend != "cpu") {
    table.read_gb_per_s = backends::copy_rate(table.backend) / 1e9;
    return;
  }
  ThreadPool pool(table.threads);
  const cpu::Roofline roofline = cpu::measure_roofline(pool, kRooflineSeconds);
  table.read_gb_per_s = roofline.read_gb_s;
  table.int8_gops = roofline.int8_gops;
  table.f32_gflops = roofline.f32_gflops;
}

}  // namespace

decide::MachineTable measure_machine(const std::string& backend, int threads, int rounds,
                                     const std::function<void(double)>& progress) {
  decide::MachineTable table;
  table.backend = backend;
  table.threads = backend == "cpu" ? threads : 0;
  table.load = load_average();
  const ForeignLoad others;
  measure_limits(table);
  const auto create = [&] { return backends::create_backend(backend, threads); };
  const auto device = create();
  const backends::Caps caps = device->caps();
  table.device = caps.device;
  table.isa = caps.isa;
  table.kernel_hash = kernel_hash();
  table.date = utc_time();
  table.memory_bytes = backend == "cpu" ? std::min(memory_limit(), caps.memory_bytes) : caps.memory_bytes;
  table.op_us = op_seconds(*device) * 1e6;
  const std::vector<Job> jobs = attention_jobs(caps);
  const double n = double(rounds) * double(jobs.size() + caps.weight_types.size());
  double done = 0;
  std::byte* pages = device->alloc(kWorkBytes);
  for (const Job& job : jobs) table.attention.push_back({job.k, job.v, job.head_dim, job.heads, 1e30});
  for (const DType type : caps.weight_types) table.weights.push_back({type, 0});
  // Rounds over everything: types are compared with each other, and a shared machine has slow minutes.
  for (int round = 0; round < rounds; ++round) {
    for (decide::AttentionCost& row : table.attention) {
      AttentionProbe probe(*device, pages, row.k, row.v, row.head_dim, row.heads_each);
      row.ns_per_key = std::min(row.ns_per_key, probe.ns_per_key());
      progress(++done / n);
    }
    for (decide::WeightCost& row : table.weights) {
      const auto matrices = create();  // lets each type's matrix go
      row.gb_per_s = std::max(row.gb_per_s, weight_rate(*matrices, formats::require(row.type)));
      progress(++done / n);
    }
  }
  device->free(pages);
  std::erase_if(table.attention, [](const decide::AttentionCost& row) { return !(row.ns_per_key < 1e30); });
  table.foreign = others.share();
  return table;
}

}  // namespace kvasir::app
