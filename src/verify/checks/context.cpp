#include "verify/checks/context.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>

#include "backends/registry/registry.h"
#include "base/error.h"
#include "formats/basis.h"

namespace kvasir::verify {

Context::Context(const Options& options)
    : options_(options),
      workers_(std::max(1, options.n_threads)),
      head_dims_(options.head_dims),
      tcq_(use_table(options.tcq)) {
  caps_ = backend(0).caps();
  if (head_dims_.empty()) head_dims_ = {64, 128, 256, 512};
}

backends::Backend& Context::backend(int n_threads) {
  if (n_threads == 0) n_threads = std::max(1, options_.n_threads);
  auto& backend = backends_[n_threads];
  if (!backend)
    backend = options_.create ? options_.create(n_threads)
                              : backends::create_backend(options_.backend, n_threads, options_.isa);
  return *backend;
}

void Context::side_by_side(int64_t n, const std::function<void(Context& part, int64_t i)>& body) {
  if (caps_.name != "cpu" || options_.create || workers_.size() < 2) {
    for (int64_t i = 0; i < n; ++i) body(*this, i);
    return;
  }
  while (parts_.size() < size_t(workers_.size())) {
    Options options = options_;
    options.n_threads = 1;
    parts_.push_back(std::make_unique<Context>(options));
  }
  std::vector<std::vector<decide::CheckResult>> found(static_cast<size_t>(n));
  std::vector<std::exception_ptr> faults(parts_.size());
  TaskCounter next;
  workers_.run([&](int thread) {
    Context& part = *parts_[size_t(thread)];
    try {
      for (int64_t i = next.take(); i < n; i = next.take()) {
        part.results.clear();
        body(part, i);
        found[size_t(i)] = std::move(part.results);
      }
    } catch (...) {
      faults[size_t(thread)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
  for (std::vector<decide::CheckResult>& one : found)
    results.insert(results.end(), std::make_move_iterator(one.begin()), std::make_move_iterator(one.end()));
}

std::vector<DType> Context::kv_types(formats::Role role) const {
  std::vector<DType> types;
  for (const DType type : caps_.kv_types)
    if (formats::require(type).has_role(role)) types.push_back(type);
  return types;
}

std::string_view type_name(DType type) { return formats::require(type).name; }

std::string_view check_name(DType type) {
  switch (type) {
    case DType::tbq3_0:
      return "turbo3";
    case DType::tbq4_0:
      return "turbo4";
    case DType::tbq3_tcq:
      return "turbo3_tcq";
    case DType::qjl1_256:
      return "qjl";
    case DType::q4_polar:
      return "polar";
    default:
      return type_name(type);
  }
}

void to_type_basis(const formats::Format& format, formats::Role side, float* x, int d) {
  formats::to_basis(format.basis, side, x, x, d);
}

void from_type_basis(const formats::Format& format, formats::Role side, float* r, int d) {
  formats::from_basis(format.basis, side, r, r, d);
}

void check(Context& context, const Label& label, const std::function<void(decide::CheckResult&)>& body) {
  decide::CheckResult result{label.group, label.name, label.head_dim,           label.k, label.v, 0, 0,
                             0,           "",         decide::Verdict::kFailed, ""};
  try {
    body(result);
  } catch (const std::exception& error) {
    result.verdict = decide::Verdict::kFailed;
    result.reason = error.what();
  }
  context.results.push_back(std::move(result));
}

void not_applicable(Context& context, const Label& label, const std::string& reason) {
  context.results.push_back({label.group, label.name, label.head_dim, label.k, label.v, 0, 0, 0, "",
                             decide::Verdict::kNotApplicable, reason});
}

void conclude(decide::CheckResult& result, const Comparison& c) {
  result.figure = c.figure;
  result.bound = c.bound;
  result.max_diff = c.max_diff;
  result.verdict = c.within() ? decide::Verdict::kPassed : decide::Verdict::kFailed;
  if (c.within()) return;
  if (c.n == 0)
    result.reason = "nothing was compared";
  else if (c.not_finite > 0)
    result.reason = fmt::format("{} of {} values are NaN or infinite on one side only", c.not_finite, c.n);
  else if (c.over > 0)
    result.reason = fmt::format("{} of {} values are beyond their bound", c.over, c.n);
  else
    result.reason = fmt::format("all {} values together use {:.2f} of their bounds, more than {:.2f}", c.n,
                                c.rms_share, Comparison::kRmsShare);
}

void conclude(decide::CheckResult& result, double figure, double bound, const std::string& reason) {
  result.figure = figure;
  result.bound = bound;
  result.max_diff = std::max(result.max_diff, figure);
  const bool passed = std::isfinite(figure) && figure <= bound;
  result.verdict = passed ? decide::Verdict::kPassed : decide::Verdict::kFailed;
  if (!passed) result.reason = reason;
}

void for_each(ThreadPool& workers, int64_t n, const std::function<void(int64_t)>& body) {
  std::vector<std::exception_ptr> faults(static_cast<size_t>(workers.size()));
  TaskCounter next;
  workers.run([&](int thread) {
    try {
      for (int64_t i = next.take(); i < n; i = next.take()) body(i);
    } catch (...) {
      faults[size_t(thread)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
}

}  // namespace kvasir::verify
