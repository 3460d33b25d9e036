// Predictions against what was measured: tables of real machines with what `kvasir bench` found there in the
// same hour. The formulas of decide/cost.cpp must explain it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "decide/matrix.h"

namespace kvasir::decide {
namespace {

namespace fs = std::filesystem;

// Relative error a prediction may have. Prompts are many kinds of ops, of which the costliest are measured;
// generation is one stream of reads. The recorded machine was shared: its own repeats differ by a tenth.
constexpr double kGeneration = 0.15, kPrompt = 0.30;

MatrixInputs read(const fs::path& folder) {
  MatrixInputs inputs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    add_evidence(inputs, std::string(std::istreambuf_iterator<char>(file), {}), entry.path().string());
  }
  return inputs;
}

// How many rows were held to a prediction.
int check(const MatrixInputs& inputs) {
  int n = 0;
  for (const SpeedTable& table : inputs.speeds)
    for (const SpeedRow& row : table.rows) {
      const std::optional<double> predicted = predict_again(inputs.machines, table, row);
      if (!predicted || row.contended) continue;
      const double error = row.measured / *predicted - 1;
      EXPECT_LE(std::abs(error), row.n_prompt > 0 ? kPrompt : kGeneration)
          << table.geometry << " " << types_text(row.types) << " prompt " << row.n_prompt << " at " << row.depth
          << ": predicted " << *predicted << ", measured " << row.measured;
      ++n;
    }
  return n;
}

TEST(Recorded, PredictionsExplainWhatBenchMeasured) {
  const MatrixInputs inputs = read(fs::path(KVASIR_SOURCE_DIR) / "tests/decide/recorded");
  ASSERT_EQ(inputs.machines.size(), 1u);
  EXPECT_GE(check(inputs), 16);
}

TEST(Recorded, SoDoThoseOfTheCommittedEvidence) { check(read(fs::path(KVASIR_SOURCE_DIR) / "docs/evidence")); }

}  // namespace
}  // namespace kvasir::decide
