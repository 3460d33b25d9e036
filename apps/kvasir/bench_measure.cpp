// Timing for `kvasir bench`.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/cpu_features.h"
#include "base/error.h"
#include "bench.h"
#include "decide/cost.h"
#include "decide/quality.h"
#include "machine.h"
#include "options.h"
#include "store.h"
#include "version.h"

namespace kvasir::app {

double BenchRow::mean_s() const {
  return std::accumulate(samples_s.begin(), samples_s.end(), 0.0) / double(samples_s.size());
}

double BenchRow::median_s() const {
  std::vector<double> sorted = samples_s;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

namespace {

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
  double sum = 0;
  for (double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / double(values.size() - 1));
}

std::vector<double> rates(const BenchRow& row) {
  std::vector<double> result;
  for (double seconds : row.samples_s) result.push_back(row.n_tokens() / seconds);
  return result;
}

}  // namespace

double BenchRow::stddev_s() const { return deviation(samples_s); }
double BenchRow::stddev_ts() const { return deviation(rates(*this)); }
double BenchRow::mean_ts() const {
  const auto values = rates(*this);
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

double BenchRow::roofline_share() const {
  if (test.n_gen == 0) return roofline.int8_gops > 0 ? gops() / roofline.int8_gops : 0;
  if (test.n_prompt == 0) return roofline.read_gb_s > 0 ? gb_per_s() / roofline.read_gb_s : 0;
  return 0;
}

std::string BenchRow::name() const {
  std::string text;
  if (test.n_prompt > 0) text += fmt::format("pp{}", test.n_prompt);
  if (test.n_gen > 0) text += fmt::format("{}tg{}", text.empty() ? "" : "+", test.n_gen);
  if (test.n_depth > 0) text += fmt::format(" @ d{}", test.n_depth);
  return text;
}

namespace {

using Clock = std::chrono::steady_clock;
using engine::Token;
using engine::Want;

// One setup's session and the sequences it works on: 0 holds a depth's prefix, `work` is the one that is
// timed.
class Bench {
 public:
  Bench(const std::shared_ptr<engine::Model>& model, const BenchSetup& setup,
        const std::vector<BenchTest>& tests)
      : model_(model),
        tokens_(size_t(longest(tests))),
        options_(options(setup, tests)),
        session_(model, options_),
        work_(deep(tests) ? 1 : 0) {
    // Any ids will do for speed; these are the same in every run.
    uint32_t state = 1;
    for (Token& token : tokens_) {
      state = state * 1664525u + 1013904223u;
      token = Token((state >> 8) % uint32_t(std::max(model->config().n_vocab, 1)));
    }
    if (model->tokenizer().add_bos() && !tokens_.empty()) tokens_[0] = model->tokenizer().bos();
  }

  const engine::Session& session() const { return session_; }
  int n_ubatch() const { return options_.n_ubatch; }

  void prefill(int depth) {
    if (work_ == 0 || session_.size(0) == depth) return;
    if (session_.size(0) > depth) session_.clear(0);
    append(0, session_.size(0), depth, Want::kNone);
  }

  double time_once(const BenchTest& test) {
    if (work_ != 0 && test.n_depth > 0)
      session_.copy(0, work_);
    else
      session_.clear(work_);
    const auto start = Clock::now();
    int at = test.n_depth;
    if (test.n_prompt > 0) append(work_, at, at + test.n_prompt, Want::kLast);
    at += test.n_prompt;
    // As greedy generation does it: each token is the best after the one before it.
    if (test.n_gen > 0)
      session_.append_greedy(work_, tokens_[size_t(at)], test.n_gen, [](Token) { return true; });
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

 private:
  static int longest(const std::vector<BenchTest>& tests) {
    int most = 0;
    for (const BenchTest& test : tests) most = std::max(most, test.n_depth + test.n_prompt + test.n_gen);
    return most;
  }
  static bool deep(const std::vector<BenchTest>& tests) {
    return std::ranges::any_of(tests, [](const BenchTest& test) { return test.n_depth > 0; });
  }
  engine::SessionOptions options(const BenchSetup& setup, const std::vector<BenchTest>& tests) const {
    engine::SessionOptions options;
    options.n_ctx = longest(tests);
    options.n_batch = setup.n_batch;
    options.n_ubatch = setup.n_ubatch;
    options.n_seq = deep(tests) ? 2 : 1;
    options.kv = setup.kv;
    options.flash_attention = setup.flash_attention;
    require_memory(*model_, options);
    return options;
  }
  void append(int seq, int from, int to, Want want) {
    const auto part = std::span<const Token>(tokens_).subspan(size_t(from), size_t(to - from));
    session_.append(seq, part, want, [](int, std::span<const float>) {});
  }

  std::shared_ptr<engine::Model> model_;
  std::vector<Token> tokens_;
  engine::SessionOptions options_;
  engine::Session session_;
  int work_;
};

// What one repetition computes and reads, by formula.
void count_work(const engine::Session& session, BenchRow& row) {
  const engine::Model& model = session.model();
  const BenchTest& test = row.test;
  if (test.n_prompt > 0) {
    row.flops += (test.n_prompt - 1) * model.prompt_row_flops() + model.row_flops() + model.logits_flops();
    const int n_ubatch = row.setup.n_ubatch;
    for (int done = 0; done < test.n_prompt; done += n_ubatch)
      row.read_bytes += double(model.step_weight_bytes()) +
                        kv_read_bytes(session, test.n_depth + std::min(done + n_ubatch, test.n_prompt));
  }
  if (test.n_gen > 0) {
    row.flops += test.n_gen * (model.row_flops() + model.logits_flops());
    row.read_bytes += step_read_bytes(session, test.n_depth + test.n_prompt, test.n_gen) * test.n_gen;
  }
}

BenchRow describe(const engine::Model& model, const BenchSetup& setup, const BenchTest& test) {
  BenchRow row;
  row.setup = setup;
  row.test = test;
  row.model_path = model.path();
  row.model_type = model.description();
  row.model_size = model.weight_bytes();
  row.n_params = model.n_params();
  row.n_threads = model.n_threads();
  row.cpu = cpu_name();
  const backends::Caps caps = model.backend().caps();
  row.isa = caps.isa;
  row.backend = caps.name;
  std::ranges::transform(row.backend, row.backend.begin(),
                         [](unsigned char c) { return char(std::toupper(c)); });
  if (caps.name != "cpu") row.gpu = caps.device;
  row.test_time = utc_time();
  row.kernel_hash = kernel_hash(caps.name);
  return row;
}

// Mean over a generation: half of it is stored on average.
double predict(const std::optional<decide::MachineTable>& table, const decide::ModelGeometry& geometry,
               const BenchSetup& setup, const BenchTest& test) {
  if (!table || !setup.flash_attention) return 0;
  const decide::KvTypes types{setup.kv.k, setup.kv.v, setup.kv.k_sliding, setup.kv.v_sliding};
  double seconds = 0;
  if (test.n_prompt > 0) {
    const auto p =
        decide::predict_prompt(*table, geometry, types, test.n_prompt, test.n_depth, setup.n_ubatch);
    if (!p.cost) return 0;
    seconds += p.cost->total();
  }
  if (test.n_gen > 0) {
    const auto p =
        decide::predict_step(*table, geometry, types, test.n_depth + test.n_prompt + (test.n_gen + 1) / 2);
    if (!p.cost) return 0;
    seconds += test.n_gen * p.cost->total();
  }
  return (test.n_prompt + test.n_gen) / seconds;
}

// The types that the decision takes for the deepest test.
BenchSetup resolve(const engine::Model& model, BenchSetup setup, const BenchPlan& plan) {
  if (!setup.decided) return setup;
  CacheQuestion question = plan.question;
  for (const BenchTest& test : plan.tests)
    question.n_ctx = std::max(question.n_ctx, test.n_depth + test.n_prompt + test.n_gen);
  question.n_ubatch = setup.n_ubatch;
  question.flash = setup.flash_attention;
  const decide::Row row = decide_cache(model, question);
  if (!plan.quiet) note("cache types decided: {}", row.reason);
  if (row.no_memory) fail(ErrorCode::kNoMemory, "{}", row.reason);
  setup.kv = {row.types.k, row.types.v, row.types.k_sliding, row.types.v_sliding, setup.kv.tcq};
  return setup;
}

// Keeps the row beside its prediction for the pages of `kvasir decide`. A mix of both is no point of either.
void keep_speed(const engine::Model& model, const decide::ModelGeometry& geometry, const BenchRow& row) {
  if (row.predicted_ts <= 0 || (row.test.n_prompt > 0 && row.test.n_gen > 0)) return;
  decide::SpeedTable table;
  if (auto stored = stored_speed(geometry.fingerprint)) table = *stored;
  table.fingerprint = geometry.fingerprint;
  table.model = row.model_type;
  table.geometry = decide::match_geometry(geometry);
  table.weights = recipe_name(model.file());
  decide::SpeedRow speed;
  speed.backend = model.backend().caps().name;
  speed.device = row.gpu.empty() ? row.cpu : row.gpu;
  const engine::KvTypes& kv = row.setup.kv;
  speed.types = {kv.k, kv.v, kv.k_sliding, kv.v_sliding};
  speed.n_prompt = row.test.n_prompt;
  speed.n_ubatch = std::min(row.setup.n_ubatch, row.test.n_prompt);
  speed.depth = row.test.n_depth + (row.test.n_gen + 1) / 2;
  speed.predicted = row.predicted_ts;
  speed.measured = row.median_ts();
  speed.contended = row.contended();
  speed.date = row.test_time;
  speed.kernel_hash = row.kernel_hash;
  add_row(table, speed);
  store_speed(table);
}

void measure_setup(const std::shared_ptr<engine::Model>& model, const BenchSetup& asked,
                   const BenchPlan& plan, const cpu::Roofline& roofline,
                   const std::function<void(const BenchRow&)>& done) {
  BenchSetup setup = resolve(*model, asked, plan);
  Bench bench(model, setup, plan.tests);
  setup.n_ubatch = bench.n_ubatch();
  const backends::Caps caps = model->backend().caps();
  const auto table = stored_machine(caps.name, caps.device, caps.name == "cpu" ? model->n_threads() : 0);
  const decide::ModelGeometry geometry = decide::read_geometry(model->file());
  const SessionEvidence evidence(bench.session(), plan.question.allow_unverified);
  evidence.show(plan.quiet);
  for (const BenchTest& test : plan.tests) {
    BenchRow row = describe(*model, setup, test);
    row.roofline = roofline;
    row.evidence = evidence.json();
    row.warning = evidence.warning();
    count_work(bench.session(), row);
    row.predicted_ts = predict(table, geometry, setup, test);
    bench.prefill(test.n_depth);
    if (plan.warm_up) bench.time_once({test.n_prompt, std::min(test.n_gen, 4), test.n_depth});
    const ForeignLoad others;
    for (int i = 0; i < plan.repetitions; ++i) {
      Progress progress(fmt::format("{} {}/{}", row.name(), i + 1, plan.repetitions));
      progress.update(double(i) / plan.repetitions);
      row.samples_s.push_back(bench.time_once(test));
    }
    row.foreign = others.share();
    row.load = load_average();
    keep_speed(*model, geometry, row);
    done(row);
  }
}

}  // namespace

void measure(const std::shared_ptr<engine::Model>& model, const BenchPlan& plan,
             const cpu::Roofline& roofline, const std::function<void(const BenchRow&)>& done) {
  for (const BenchSetup& setup : plan.setups) measure_setup(model, setup, plan, roofline, done);
}

}  // namespace kvasir::app
