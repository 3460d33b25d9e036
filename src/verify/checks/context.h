// What every group of checks gets, and how a check becomes a result.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "verify/checks/tcq_use.h"
#include "verify/compare.h"
#include "verify/verify.h"

namespace kvasir::verify {

class Context {
 public:
  explicit Context(const Options& options);

  const Options& options() const { return options_; }
  const backends::Caps& caps() const { return caps_; }
  const TcqUse& tcq() const { return tcq_; }
  // Created once a number of threads; 0: the number asked for.
  backends::Backend& backend(int n_threads = 0);
  // For arithmetic of our own.
  ThreadPool& workers() { return workers_; }
  const std::vector<int>& head_dims() const { return head_dims_; }
  // Types with attention on this backend that may hold keys or values.
  std::vector<DType> kv_types(formats::Role role) const;
  // Same bits as the scalar codec; Vulkan and Metal may be one step of an f16 scale away.
  bool same_bits() const { return options_.backend == "cpu" || options_.backend == "cuda"; }

  // The same bits however rows are cut into steps. CUDA has one kernel for few rows and another for many;
  // every cut has to be right there, not equal.
  bool same_bits_by_step() const { return options_.backend != "cuda"; }

  // body(part, i) for i < n. On the CPU several at a time, each part with a backend of one thread: small checks
  // would leave most of a team waiting at its barriers. Elsewhere, and with a backend of a test, one after
  // another with this context itself. Results come in the order of i; the first exception of any is thrown.
  void side_by_side(int64_t n, const std::function<void(Context& part, int64_t i)>& body);

  std::vector<decide::CheckResult> results;

 private:
  Options options_;
  ThreadPool workers_;
  backends::Caps caps_;
  std::vector<int> head_dims_;
  TcqUse tcq_;
  std::map<int, std::unique_ptr<backends::Backend>> backends_;
  std::vector<std::unique_ptr<Context>> parts_;
};

struct Label {
  std::string group, name;
  int head_dim = 0;
  std::string k, v;
};

// Runs `body`, which fills figures, variant and verdict; an exception becomes a failure with its message.
void check(Context& context, const Label& label, const std::function<void(decide::CheckResult&)>& body);
void not_applicable(Context& context, const Label& label, const std::string& reason);
// Figures, verdict and reason of a comparison.
void conclude(decide::CheckResult& result, const Comparison& comparison);
// One number against its bound.
void conclude(decide::CheckResult& result, double figure, double bound, const std::string& reason);
std::string_view type_name(DType type);
// The name that published gates have for the scores of a type; its own where they have none.
std::string_view check_name(DType type);
// A row in place, by the product's own arithmetic, into the basis of a type and back.
void to_type_basis(const formats::Format& format, formats::Role side, float* x, int d);
void from_type_basis(const formats::Format& format, formats::Role side, float* r, int d);

// body(0) .. body(n - 1), in any order on all threads; the first exception of any is thrown when all are
// done.
void for_each(ThreadPool& workers, int64_t n, const std::function<void(int64_t)>& body);

void check_reference(Context& context);
void check_scores(Context& context);
void check_write(Context& context);
void check_fused(Context& context);
void check_fold(Context& context);
void check_dispatch(Context& context);
void check_end_to_end(Context& context);
void check_weights(Context& context);
void check_elementwise(Context& context);  // of group weights too

}  // namespace kvasir::verify
