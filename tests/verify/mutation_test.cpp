// Every fault of base/mutations.def, planted in the shipped kernels of every instruction set, must turn the
// checks red that it names, and without it they must be green.
#include "base/mutation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "formats/format.h"
#include "verify/forwarding.h"
#include "verify/verify.h"

namespace kvasir::verify {
namespace {

struct Fault {
  Mutation mutation;
  std::string_view name, what, group, k, v;
  int head_dim;
};

constexpr Fault kFaults[] = {
#define KVASIR_MUTATION(id, what, group, k, v, head_dim) {Mutation::id, #id, what, group, k, v, head_dim},
#include "base/mutations.def"
#undef KVASIR_MUTATION
};

class Planted {
 public:
  explicit Planted(Mutation which) { active_mutation = which; }
  ~Planted() { active_mutation = Mutation::kNone; }
  Planted(const Planted&) = delete;
};

// The product's backend, which says that it has these types only.
class FewTypes final : public Forwarding {
 public:
  FewTypes(std::unique_ptr<backends::Backend> inner, const Fault& fault)
      : Forwarding(std::move(inner)), fault_(fault) {}
  backends::Caps caps() const override {
    backends::Caps caps = inner_->caps();
    const auto keep = [&](std::vector<DType>& types) {
      std::erase_if(types, [&](DType type) {
        const std::string_view name = formats::require(type).name;
        return name != fault_.k && name != fault_.v;
      });
    };
    keep(caps.kv_types);
    keep(caps.weight_types);
    return caps;
  }

 private:
  const Fault& fault_;
};

Outcome run_checks(const Fault& fault, Isa isa) {
  Options options;
  options.groups = {std::string(fault.group)};
  if (fault.head_dim > 0) options.head_dims = {fault.head_dim};
  options.n_threads = 1;  // fold has more
  options.model = KVASIR_SOURCE_DIR "/models/tiny-gemma4-f16.gguf";
  if (isa != best_isa()) options.isa = isa_name(isa);
  options.create = [&fault, isa](int n_threads) {
    return std::make_unique<FewTypes>(backends::create_backend("cpu", n_threads, isa_name(isa)), fault);
  };
  return run(options);
}

// The first check that failed, or null.
const decide::CheckResult* first_red(const Outcome& outcome) {
  for (const decide::CheckResult& check : outcome.checks)
    if (check.verdict == decide::Verdict::kFailed) return &check;
  return nullptr;
}

int n_passed(const Outcome& outcome) {
  int n = 0;
  for (const decide::CheckResult& check : outcome.checks) n += check.verdict == decide::Verdict::kPassed;
  return n;
}

class Mutations : public testing::TestWithParam<Isa> {};

TEST_P(Mutations, TurnTheGateRed) {
  const Isa isa = GetParam();
  if (!cpu_supports(isa)) GTEST_SKIP() << "this CPU has no " << isa_name(isa);
  std::map<std::string, bool> green;  // checks without a fault
  for (const Fault& fault : kFaults) {
    if (fault.group == "end_to_end" && isa != best_isa()) continue;  // the engine runs the fastest kernels
    const std::string checks = fmt::format("{} {} {} {}", fault.group, fault.k, fault.v, fault.head_dim);
    if (!green[checks]) {
      const Outcome sound = run_checks(fault, isa);
      const decide::CheckResult* red = first_red(sound);
      EXPECT_FALSE(red) << checks << " without a fault: " << red->name << ": " << red->reason;
      EXPECT_GT(n_passed(sound), 0) << checks;
      green[checks] = true;
    }
    const Planted planted(fault.mutation);
    const Outcome outcome = run_checks(fault, isa);
    const decide::CheckResult* red = first_red(outcome);
    fmt::print("{:<8} {:<16} {:<11} {:>10.3g} of {:<10.3g} {} | {}\n", isa_name(isa), fault.name, fault.group,
               red ? red->figure : 0, red ? red->bound : 0, red ? red->name : "NOT FOUND", fault.what);
    EXPECT_TRUE(red) << fault.name << " (" << fault.what << ") is not found by " << checks;
  }
  std::fflush(stdout);
}

INSTANTIATE_TEST_SUITE_P(Rows, Mutations,
                         testing::Values(
#if defined(__x86_64__)
                             Isa::kGeneric, Isa::kAvx2, Isa::kAvx512
#else
                                              Isa::kGeneric, Isa::kNeon
#endif
                             ),
                         [](const auto& row) { return std::string(isa_name(row.param)); });

}  // namespace
}  // namespace kvasir::verify
