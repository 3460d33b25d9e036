// The checks must pass on the product and turn red on a product with a fault, wherever the fault is.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "backends/registry/registry.h"
#include "base/error.h"
#include "formats/tcq_table.h"
#include "verify/forwarding.h"
#include "verify/reference/random.h"

namespace kvasir::verify {
namespace {

// What is done to what the backend gives out.
struct Plant {
  std::function<void(std::vector<float>&)> output;  // of inspect
  std::function<void(std::vector<std::byte>&, backends::PagePart)> page;
  std::function<void(backends::Caps&)> caps;
};

class PlantedExecutable final : public ForwardingExecutable {
 public:
  PlantedExecutable(std::unique_ptr<backends::Executable> inner, const Plant& plant)
      : ForwardingExecutable(std::move(inner)), plant_(plant) {}
  std::span<const float> inspect(graph::ValueId value) override {
    const auto real = inner_->inspect(value);
    kept_.assign(real.begin(), real.end());
    if (plant_.output && !kept_.empty()) plant_.output(kept_);
    return kept_;
  }

 private:
  Plant plant_;
  std::vector<float> kept_;
};

class PlantedBackend final : public Forwarding {
 public:
  PlantedBackend(int n_threads, Plant plant)
      : Forwarding(backends::create_backend("cpu", n_threads)), plant_(std::move(plant)) {}
  backends::Caps caps() const override {
    backends::Caps caps = inner_->caps();
    caps.kv_types = {DType::f32, DType::f16, DType::q4_0};
    if (plant_.caps) plant_.caps(caps);
    return caps;
  }
  void read_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                 std::byte* rows) override {
    inner_->read_page(spec, part, kv_head, page, rows);
    if (!plant_.page) return;
    std::vector<std::byte> row(rows, rows + 18);  // the first block of the first row
    plant_.page(row, part);
    std::copy(row.begin(), row.end(), rows);
  }
  std::unique_ptr<backends::Executable> compile(const graph::Graph& graph,
                                                const backends::Decisions& decisions,
                                                const backends::KvBuffers& kv, int max_rows) override {
    return std::make_unique<PlantedExecutable>(inner_->compile(graph, decisions, kv, max_rows), plant_);
  }

 private:
  Plant plant_;
};

Outcome run_planted(Plant plant, std::vector<std::string> groups) {
  Options options;
  options.groups = std::move(groups);
  options.head_dims = {64};
  options.n_threads = 2;
  options.create = [plant](int n_threads) { return std::make_unique<PlantedBackend>(n_threads, plant); };
  return run(options);
}

std::map<std::string, int> failures(const Outcome& outcome) {
  std::map<std::string, int> count;
  for (const decide::CheckResult& check : outcome.checks)
    count[check.group] += check.verdict == decide::Verdict::kFailed;
  return count;
}

const std::vector<std::string> kKernelGroups = {"scores", "write", "fused", "fold", "weights"};

TEST(Verify, PassesOnTheProduct) {
  const Outcome outcome = run_planted({}, kKernelGroups);
  for (const decide::CheckResult& check : outcome.checks)
    EXPECT_NE(check.verdict, decide::Verdict::kFailed)
        << check.group << " " << check.name << ": " << check.reason;
  EXPECT_GT(outcome.checks.size(), 80u);
  EXPECT_FALSE(outcome.doubts.empty());
}

// Levels drawn at random, some far out: nothing of Kvasir's own table may be left in any path.
TEST(Verify, AnotherTableOfTcqIsCheckedEverywhere) {
  reference::Gaussian random(17);
  std::vector<float> levels = random.vector(formats::kTcqStates, 0.1);
  levels[5] = 0.5f;
  Options options;
  options.groups = {"reference", "scores", "write", "fused"};
  options.head_dims = {256};
  options.n_threads = 2;
  options.tcq = formats::make_tcq_table(levels, "random");
  int seen = 0;
  for (const decide::CheckResult& check : run(options).checks) {
    seen += check.k == "tbq3_tcq" || check.v == "tbq3_tcq";
    EXPECT_NE(check.verdict, decide::Verdict::kFailed)
        << check.group << " " << check.name << " " << check.k << "/" << check.v << ": " << check.reason;
  }
  EXPECT_GT(seen, 40);
}

TEST(Verify, OneValueOffByTwoPercentTurnsRed) {
  Plant plant;
  plant.output = [](std::vector<float>& x) {
    auto largest =
        std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    *largest *= 1.02f;
  };
  const auto red = failures(run_planted(plant, {"fused", "weights"}));
  EXPECT_GT(red.at("fused"), 0);
}

TEST(Verify, EveryValueALittleOffTurnsRed) {
  Plant plant;
  plant.output = [](std::vector<float>& x) {
    for (float& v : x) v *= 1.002f;
  };
  const auto red = failures(run_planted(plant, {"scores", "fused"}));
  EXPECT_GT(red.at("fused"), 0);
}

TEST(Verify, ANanTurnsRed) {
  Plant plant;
  plant.output = [](std::vector<float>& x) { x.front() = x.back() = std::nanf(""); };
  const auto red = failures(run_planted(plant, kKernelGroups));
  for (const char* group : {"scores", "fused", "weights"}) EXPECT_GT(red.at(group), 0) << group;
}

TEST(Verify, OneBitOfTheCacheTurnsRed) {
  for (const int byte : {0, 1, 2, 17}) {  // scale, scale, first codes, last codes of a q4_0 block
    Plant plant;
    plant.page = [byte](std::vector<std::byte>& row, backends::PagePart part) {
      if (part == backends::PagePart::kKeys || part == backends::PagePart::kValues)
        row[size_t(byte)] ^= std::byte(1);
    };
    EXPECT_GT(failures(run_planted(plant, {"write"})).at("write"), 0) << byte;
  }
  Plant plant;
  plant.page = [](std::vector<std::byte>& row, backends::PagePart part) {
    if (part == backends::PagePart::kExactKeys) row[4] ^= std::byte(1);
  };
  EXPECT_GT(failures(run_planted(plant, {"write"})).at("write"), 0);
}

TEST(Verify, AnotherDeviceThanItSaysTurnsRed) {
  Plant plant;
  plant.caps = [](backends::Caps& caps) { caps.isa = "warp32"; };
  EXPECT_GT(failures(run_planted(plant, {"dispatch"})).at("dispatch"), 0);
}

TEST(Verify, UnknownGroupsAndHeadSizesAreRefused) {
  Options options;
  options.groups = {"scores", "speed"};
  EXPECT_THROW(run(options), Error);
  options.groups.clear();
  options.head_dims = {80};
  EXPECT_THROW(run(options), Error);
}

}  // namespace
}  // namespace kvasir::verify
