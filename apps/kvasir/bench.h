// Parts of `kvasir bench`: what to measure, a measured row, and how rows are written.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/roofline.h"
#include "cache_choice.h"
#include "engine/session.h"
#include "options.h"

namespace kvasir::app {

// A session is built once for each of these.
struct BenchSetup {
  engine::KvTypes kv;
  bool decided = false;  // kv is "auto": the decision chooses for each model
  bool flash_attention = true;
  int n_batch = 2048, n_ubatch = 0;  // 0: what suits the backend
};

struct BenchTest {
  int n_prompt = 0, n_gen = 0, n_depth = 0;
};

struct BenchRow {
  BenchSetup setup;
  BenchTest test;
  std::string model_path, model_type, cpu, isa, test_time;
  std::string backend, gpu;  // "CPU" or "CUDA"; the device's name or nothing
  uint64_t model_size = 0;
  int64_t n_params = 0;
  int n_threads = 0;
  std::vector<double> samples_s;
  double flops = 0;       // of one repetition, executed matrix products only
  double read_bytes = 0;  // of one repetition, weights and keys and values
  cpu::Roofline roofline;
  double load = 0;
  double foreign = 0;               // share of the machine that others used
  nlohmann::ordered_json evidence;  // of the kernels that ran
  std::string warning;              // what is not proved of them
  double predicted_ts = 0;          // tokens/s from the figures of `devices --measure`; 0: none
  std::string kernel_hash;

  double n_tokens() const { return test.n_prompt + test.n_gen; }
  double mean_s() const;
  double median_s() const;
  double stddev_s() const;
  double mean_ts() const;
  double stddev_ts() const;
  double median_ts() const { return n_tokens() / median_s(); }
  double gb_per_s() const { return read_bytes / median_s() / 1e9; }
  double gops() const { return flops / median_s() / 1e9; }
  // Prompt rows against the int8 peak, generation against the read rate: what bounds each. A mix has no
  // single bound: 0.
  double roofline_share() const;
  bool contended() const { return foreign > 0.10; }
  // Measured over predicted, less one; 0 without a prediction.
  double prediction_error() const { return predicted_ts > 0 ? median_ts() / predicted_ts - 1 : 0; }
  // "pp512", "tg128", "pp512+tg128", each with " @ d16384"
  std::string name() const;
};

// Measures every test with every setup on one loaded model; calls `done` as rows finish.
struct BenchPlan {
  std::vector<BenchSetup> setups;
  std::vector<BenchTest> tests;
  int repetitions = 5;
  bool warm_up = true;
  bool quiet = false;
  CacheQuestion question;  // of setups that are decided
};
void measure(const std::shared_ptr<engine::Model>& model, const BenchPlan& plan,
             const cpu::Roofline& roofline, const std::function<void(const BenchRow&)>& done);

// Streams rows to stdout in one of md, json, jsonl, csv.
class BenchWriter {
 public:
  virtual ~BenchWriter() = default;
  virtual void begin() {}
  virtual void row(const BenchRow& row) = 0;
  virtual void end() {}
};
// `varied`: names of the parameters that take several values or differ from the default; md gives each a
// column.
std::unique_ptr<BenchWriter> make_bench_writer(const std::string& format,
                                               const std::vector<std::string>& varied);

}  // namespace kvasir::app
