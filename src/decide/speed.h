// What `kvasir bench` measured of a model beside what was predicted, one file a model.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "decide/geometry.h"

namespace kvasir::decide {

struct SpeedRow {
  std::string backend, device;
  KvTypes types;
  int depth = 0;                       // tokens stored before the generation
  double predicted = 0, measured = 0;  // tokens/s
  bool contended = false;
  std::string date;
};

struct SpeedTable {
  std::string fingerprint, model;
  std::vector<SpeedRow> rows;
};

std::string to_json(const SpeedTable& table);
// Throws Error{kBadFile}.
SpeedTable speed_from_json(std::string_view text, std::string_view name);
// Replaces the row of the same device, types and depth.
void add_row(SpeedTable& table, const SpeedRow& row);

}  // namespace kvasir::decide
