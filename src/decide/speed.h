// What `kvasir bench` measured of a model beside what was predicted, one file a model.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "decide/cost.h"

namespace kvasir::decide {

struct SpeedRow {
  std::string backend, device;
  KvTypes types;
  int n_prompt = 0;                    // of a prompt; 0: generation
  int n_ubatch = 0;                    // rows of it computed together
  int depth = 0;                       // tokens stored before the prompt, or on average while generating
  double predicted = 0, measured = 0;  // tokens/s
  bool contended = false;
  std::string date, kernel_hash;
};

struct SpeedTable {
  std::string fingerprint, model;
  std::string geometry, weights;  // as QualityTable has them
  std::vector<SpeedRow> rows;
};

std::string to_json(const SpeedTable& table);
// Throws Error{kBadFile}.
SpeedTable speed_from_json(std::string_view text, std::string_view name);
// What the newest of `machines` with the row's backend, device and kernels predicts for it; nullopt: there is none,
// or the model has no published geometry.
std::optional<double> predict_again(const std::vector<MachineTable>& machines, const SpeedTable& table,
                                    const SpeedRow& row);
// Replaces the row of the same device, types, prompt and depth.
void add_row(SpeedTable& table, const SpeedRow& row);

}  // namespace kvasir::decide
