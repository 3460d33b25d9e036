#include "measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "backends/cpu/roofline.h"
#include "backends/registry/registry.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "graph/kv_layout.h"
#include "machine.h"
#include "measure_device.h"
#include "options.h"
#include "probe.h"
#include "version.h"

namespace kvasir::app {
namespace {

using Clock = std::chrono::steady_clock;
using graph::kPageTokens;

constexpr double kRooflineSeconds = 0.6;
constexpr size_t kWorkBytes = size_t(256) << 20;  // no cache that a program has for itself holds this
constexpr double kSliceSeconds = 0.03;            // of one figure
constexpr int kDeepKeys = 8192;                   // a depth at which attention is nearly all of its step
constexpr int kNormWidth = 1536;
constexpr int kPromptRows = decide::kPromptRows;
constexpr int kPromptDepth = 1024;  // a depth at which keys are most of a prompt's attention
constexpr int kPromptRuns = 2;      // a run of many rows takes long enough for a few to do

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Seconds of `n_ops` products of `n_rows` rows with one matrix.
double product_seconds(backends::Backend& backend, const formats::Format& format, int width, int64_t n_out,
                       int n_rows, int n_ops) {
  const std::vector<std::byte> data = some_weights(format, width, n_out);
  Draft draft;
  const graph::ValueId x = draft.look_up(width, kPageTokens);
  const graph::WeightId w = draft.weight(format.type, width, n_out, data);
  for (int i = 0; i < n_ops; ++i) draft.matmul(x, w);
  Steps steps(backend, draft, n_rows);
  return n_rows == 1 ? steps.seconds(2 * kSliceSeconds, 8) : steps.seconds(0, kPromptRuns);
}

// Seconds of one product of many, each behind a norm and with a small matrix of its own; its bytes too.
double small_product_seconds(backends::Backend& backend, const formats::Format& format, double idle,
                             size_t& bytes) {
  constexpr int kWidth = 1024;
  const std::vector<std::byte> data = some_weights(format, kWidth, kWidth);
  bytes = data.size();
  const int n = int(kWorkBytes / 2 / bytes);
  Draft draft;
  graph::ValueId x = draft.look_up(kWidth, kPageTokens);
  for (int i = 0; i < n; ++i)
    x = draft.matmul(draft.norm(x), draft.weight(format.type, kWidth, kWidth, data));
  return (Steps(backend, draft, 1).seconds(kSliceSeconds, 8) - idle) / n;
}

void measure_weights(backends::Backend& one, backends::Backend& many, double idle, decide::WeightCost& row) {
  constexpr int kWidth = 2048;
  const formats::Format& format = formats::require(row.type);
  const size_t row_bytes = format.row_bytes(kWidth);
  const int64_t n_out = int64_t(kWorkBytes / row_bytes) / 64 * 64;
  const double read = product_seconds(one, format, kWidth, n_out, 1, 1) - idle;
  const double rate = double(n_out) * double(row_bytes) / read;
  size_t bytes = 0;
  const double small = small_product_seconds(one, format, idle, bytes);
  const double start_us = std::max(small - double(bytes) / rate, 1e-9) * 1e6;
  row.product_us = row.product_us > 0 ? std::min(row.product_us, start_us) : start_us;
  row.gb_per_s = std::max(row.gb_per_s, rate / 1e9);
  constexpr int kOut = 8192, kOps = 2;
  const double products = product_seconds(many, format, kWidth, kOut, kPromptRows, kOps) - idle;
  row.prompt_gops = std::max(row.prompt_gops, 2.0 * kWidth * kOut * kPromptRows * kOps / products / 1e9);
}

// One attention op over a cache that is rotated through so that no step finds it in a cache of the processor.
class AttentionProbe {
 public:
  AttentionProbe(backends::Backend& backend, std::byte* pages, DType k, DType v, int head_dim, int heads)
      : backend_(backend), pages_(pages) {
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
    small_ = draft_.look_up(32, kPageTokens);
    page_bytes_ = graph::kv_page_bytes(draft_.graph.kv[0]);
    n_pages_ = int(std::min<size_t>(kWorkBytes / page_bytes_, 4096));
    exact_bytes_ = graph::kv_exact_page_bytes(draft_.graph.kv[0]);
    exact_ = exact_bytes_ ? backend_.alloc(exact_bytes_) : nullptr;
    backend_.upload(draft_.graph, {}, {});
    const backends::KvBuffers kv{{pages_}, {n_pages_}, {exact_}, {exact_ ? 1 : 0}};
    executable_ = backend_.compile(draft_.graph, {}, kv, kPageTokens);
    prompts_ = backend_.compile(draft_.graph, {}, kv, kPromptRows);
    fill();
  }
  ~AttentionProbe() {
    executable_.reset();
    prompts_.reset();
    if (exact_) backend_.free(exact_);
  }
  AttentionProbe(const AttentionProbe&) = delete;

  // Deep and shallow steps in turn, so that a change of the machine's speed meets both. Infinite where a
  // step's start hides the keys.
  double ns_per_key() {
    const int n_keys = kDeepKeys;
    double deep = 1e30, shallow = 1e30;
    const auto begin = Clock::now();
    for (int i = 0; seconds_since(begin) < (i < 8 ? 8 : 1) * kSliceSeconds; ++i) {
      deep = std::min(deep, seconds(n_keys));
      shallow = std::min(shallow, seconds(kPageTokens));
    }
    if (deep < 1.5 * shallow) return std::numeric_limits<double>::infinity();
    return (deep - shallow) / double(n_keys - kPageTokens) * 1e9;
  }

  // A prompt's rows deep in the context, and at its start: what a stored token costs a row, and what is left
  // of a row without them (encoding and storing it).
  void prompt(double start_seconds, decide::AttentionCost& row) {
    double deep = 1e30, shallow = 1e30;
    for (int i = 0; i < kPromptRuns; ++i) {
      deep = std::min(deep, prompt_seconds(kPromptDepth));
      shallow = std::min(shallow, prompt_seconds(0));
    }
    if (deep <= shallow) return;
    const double ns = (deep - shallow) / (double(kPromptRows) * kPromptDepth) * 1e9;
    const double keys = kPromptRows * (kPromptRows + 1) / 2;
    const double left = std::max((shallow - start_seconds) * 1e9 - keys * ns, 0.0) / kPromptRows;
    row.prompt_ns = row.prompt_ns > 0 ? std::min(row.prompt_ns, ns) : ns;
    row.append_ns = row.append_ns > 0 ? std::min(row.append_ns, left) : left;
  }

 private:
  double prompt_seconds(int depth) {
    const int n_table = (depth + kPromptRows) / kPageTokens;
    std::vector<int32_t> table(static_cast<size_t>(n_table)), exact(static_cast<size_t>(n_table), -1);
    for (int32_t& page : table) page = int32_t(next_++ % n_pages_);
    if (exact_)  // pages that the step fills lie in its own memory
      for (int i = 0; i < kPromptRows / kPageTokens; ++i) exact[size_t(depth / kPageTokens + i)] = 1 + i;
    const auto start = Clock::now();
    step(*prompts_, depth, kPromptRows, table, exact);
    return seconds_since(start);
  }
  // The last token of `n_keys` lies in the middle of an open page.
  double seconds(int n_keys) {
    const int n_table = n_keys / kPageTokens;
    std::vector<int32_t> table(static_cast<size_t>(n_table)), exact(static_cast<size_t>(n_table), -1);
    for (int32_t& page : table) page = int32_t(next_++ % n_pages_);
    if (exact_) exact.back() = 0;
    const auto start = Clock::now();
    step(*executable_, n_keys - kPageTokens / 2, 1, table, exact);
    return seconds_since(start);
  }
  void fill() {
    step(*executable_, 0, kPageTokens, {0}, {exact_ ? 0 : -1});
    for (int i = 1; i < n_pages_; ++i) backend_.copy(pages_ + size_t(i) * page_bytes_, pages_, page_bytes_);
  }
  void step(backends::Executable& executable, int pos, int n_rows, const std::vector<int32_t>& table,
            const std::vector<int32_t>& exact) {
    std::vector<graph::Row> rows;
    for (int i = 0; i < n_rows; ++i) rows.push_back({i % kPageTokens, pos + i, 0, 0});
    graph::SequenceView view;
    view.page_table[0] = table;
    view.exact_table[0] = exact;
    executable.submit({rows, {&view, 1}});
    executable.inspect(small_);
  }

  backends::Backend& backend_;
  std::byte* pages_;
  Draft draft_;
  graph::ValueId out_ = graph::kNone, small_ = graph::kNone;
  size_t page_bytes_ = 0, exact_bytes_ = 0;
  int n_pages_ = 0;
  std::byte* exact_ = nullptr;
  std::unique_ptr<backends::Executable> executable_, prompts_;
  int64_t next_ = 1;
};

void measure_limits(decide::MachineTable& table) {
  ThreadPool pool(table.threads);
  const cpu::Roofline roofline = cpu::measure_roofline(pool, kRooflineSeconds);
  table.read_gb_per_s = roofline.read_gb_s;
  table.int8_gops = roofline.int8_gops;
  table.f32_gflops = roofline.f32_gflops;
}

// `progress` gets how many figures are done of all.
void measure_host(backends::Backend& device, decide::MachineTable& table, int rounds,
                  const std::function<void(double)>& progress) {
  const backends::Caps caps = device.caps();
  const auto create = [&] { return backends::create_backend(table.backend, table.threads); };
  measure_limits(table);
  const double idle = idle_seconds(device), one_row = norm_seconds(device, kNormWidth, 1, idle);
  table.op_us = 1e6 * one_row;
  table.value_ns = norm_seconds(device, kNormWidth, kPromptRows, idle) / (kPromptRows * kNormWidth) * 1e9;
  const std::vector<AttentionJob> jobs = attention_jobs(caps);
  const double n = double(rounds) * double(jobs.size() + caps.weight_types.size());
  double done = 0;
  std::byte* pages = device.alloc(kWorkBytes);
  for (const AttentionJob& job : jobs)
    table.attention.push_back({job.k, job.v, job.head_dim, job.heads, 1e30});
  for (const DType type : caps.weight_types) table.weights.push_back({type});
  // Rounds over everything: types are compared with each other, and a shared machine has slow minutes.
  for (int round = 0; round < rounds; ++round) {
    for (decide::AttentionCost& row : table.attention) {
      AttentionProbe probe(device, pages, row.k, row.v, row.head_dim, row.heads_each);
      row.ns_per_key = std::min(row.ns_per_key, probe.ns_per_key());
      probe.prompt(idle + 5 * one_row, row);
      progress(++done / n);
    }
    for (decide::WeightCost& row : table.weights) {
      const auto one = create(), many = create();  // let each type's matrices go
      measure_weights(*one, *many, idle, row);
      progress(++done / n);
    }
  }
  device.free(pages);
  std::erase_if(table.attention, [](const decide::AttentionCost& row) { return !(row.ns_per_key < 1e30); });
}

}  // namespace

std::vector<AttentionJob> attention_jobs(const backends::Caps& caps) {
  std::vector<AttentionJob> jobs;
  for (const DType type : caps.kv_types) {
    const formats::Format& format = formats::require(type);
    const DType v = format.has_role(formats::kValues) ? type : DType::q8_0;
    for (const int head_dim : caps.head_dims)
      if (head_dim >= 128 && format.takes(head_dim))
        for (const int heads : {2, 8}) jobs.push_back({type, v, head_dim, heads});
  }
  return jobs;
}

decide::MachineTable measure_machine(const std::string& backend, int threads, int rounds,
                                     const std::function<void(double)>& progress) {
  decide::MachineTable table;
  table.backend = backend;
  table.threads = backend == "cpu" ? threads : 0;
  table.load = load_average();
  const ForeignLoad others;
  const auto device = backends::create_backend(backend, threads);
  const backends::Caps caps = device->caps();
  table.device = caps.device;
  table.isa = caps.isa;
  table.kernel_hash = kernel_hash(backend);
  table.date = utc_time();
  if (backend == "cpu") {
    table.memory_bytes = std::min(memory_limit(), caps.memory_bytes);
    measure_host(*device, table, rounds, progress);
  } else {
    table.memory_bytes = caps.memory_bytes;
    table.read_gb_per_s = backends::copy_rate(backend) / 1e9;
    measure_device(*device, table, rounds, progress);
  }
  table.foreign = others.share();
  return table;
}

}  // namespace kvasir::app
