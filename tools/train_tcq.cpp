// The table of tbq3_tcq, by recipe:
//   start     state (a, b, o), newest symbol o, gets 0.95 times the normal quantile of (h + 1/2) / 512 with h
//   = 64 (a xor
//             o) + 8 b + o, in units of the root mean square of a row
//   learning  100 rounds of generalised Lloyd over 6000 rows of 128 unit Gaussians brought to one norm:
//   search each
//             row's path, then move every level to the mean of the values that met its state
//   result    the round with the least error, its levels rounded to whole steps of the largest / 127
// The error printed beside it is that of other rows (2^21 values) by the codec's own search, with a
// least-squares scale each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "formats/tcq_table.h"
#include "formats/trellis.h"
#include "train_trellis.h"

namespace {

using kvasir::formats::mirrored_state;
using Search = kvasir::formats::Trellis<3>;

constexpr int kRow = 128, kRows = 6000, kRounds = 100;

// Whole levels by trellis.h's state, and what one is worth in root mean squares.
struct Rounded {
  std::vector<int8_t> level;
  double unit;
};

Rounded rounded(const std::vector<double>& levels) {
  double largest = 0;
  for (double level : levels) largest = std::max(largest, std::fabs(level));
  Rounded out{{}, largest / 127};
  for (double level : levels) out.level.push_back(int8_t(std::lround(level / out.unit)));
  return out;
}

// States of the cheapest path through z, by f32 costs: what the codec's whole numbers come close to.
void best_path(const float* z, const std::vector<double>& levels, uint16_t* states) {
  static uint8_t from[kRow][64];
  float level[512], cost[512]{}, best[64];
  for (size_t s = 0; s < 512; ++s) level[s] = float(levels[s]);
  for (int t = 0; t < kRow; ++t) {
    int pick[64]{};
    std::copy(cost, cost + 64, best);
    for (int p = 1; p < 8; ++p)
      for (int low = 0; low < 64; ++low) {
        const bool less = cost[p * 64 + low] < best[low];
        best[low] = less ? cost[p * 64 + low] : best[low];
        pick[low] = less ? p : pick[low];
      }
    std::copy(pick, pick + 64, from[t]);
    for (int s = 0; s < 512; ++s) cost[s] = best[s >> 3] + (z[t] - level[s]) * (z[t] - level[s]);
  }
  int s = int(std::min_element(cost, cost + 512) - cost);
  for (int t = kRow - 1; t >= 0; --t) {
    states[t] = uint16_t(s);
    s = from[t][s >> 3] * 64 + (s >> 3);
  }
}

// As the codec finds it, among whole levels.
void whole_path(const float* z, const Rounded& table, uint16_t* states) {
  int8_t target[kRow];
  uint8_t symbols[kRow];
  for (int i = 0; i < kRow; ++i)
    target[i] = int8_t(std::lround(std::clamp(z[i] / table.unit, -127.0, 127.0)));
  unsigned state = unsigned(Search::search_open(target, kRow, table.level.data(), symbols));
  for (int i = 0; i < kRow; ++i) states[i] = uint16_t(state = (state << 3 | symbols[i]) & 511);
}

// NMSE of rows under the levels with a least-squares scale each, their paths by `search(z, states)`; `means`,
// when not null, becomes the mean of the values that met each state.
template <typename Find>
double round_of(const std::vector<float>& data, const std::vector<double>& levels, const Find& search,
                std::vector<double>* means) {
  std::vector<double> sum(512), count(512);
  double error = 0, energy = 0;
  for (size_t at = 0; at < data.size(); at += kRow) {
    float z[kRow];
    uint16_t states[kRow];
    double squares = 0, zy = 0, yy = 0;
    for (size_t i = 0; i < kRow; ++i) squares += double(data[at + i]) * data[at + i];
    for (size_t i = 0; i < kRow; ++i) z[i] = float(data[at + i] * std::sqrt(kRow / squares));
    search(z, states);
    for (int i = 0; i < kRow; ++i) {
      const double y = levels[states[i]];
      zy += z[i] * y, yy += y * y;
      sum[states[i]] += z[i], ++count[states[i]];
    }
    energy += squares;
    error += squares * (1 - zy * zy / yy / kRow);
  }
  for (size_t s = 0; means && s < 512; ++s)
    if (count[s] > 0) (*means)[s] = sum[s] / count[s];
  return error / energy;
}

}  // namespace

void print_tcq_table() {
  const std::vector<float> data = gaussians(20260104, size_t(kRows) * kRow),
                           other = gaussians(20260105, size_t(1) << 21);
  std::vector<double> levels(512);
  for (int s = 0; s < 512; ++s) {
    const int o = s & 7, b = s >> 3 & 7, a = s >> 6, h = 64 * (a ^ o) + 8 * b + o;
    levels[size_t(s)] = 0.95 * quantile((h + 0.5) / 512);
  }
  std::vector<double> best;
  double least = 1;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> now = levels;
    const double error = round_of(
        data, now, [&](const float* z, uint16_t* states) { best_path(z, now, states); }, &levels);
    if (error < least) least = error, best = now;
  }
  const Rounded table = rounded(best);
  const std::vector<double> whole(table.level.begin(), table.level.end());
  const double nmse = round_of(
      other, whole, [&](const float* z, uint16_t* states) { whole_path(z, table, states); }, nullptr);
  fmt::print(
      "// Written by train-codebook tcq; do not edit. Levels of tbq3_tcq by state (tcq_table.h), in units of "
      "kTcqUnit for rows\n"
      "// of norm 1, and the error they reach on unit Gaussian rows.\n"
      "#pragma once\n#include <cstdint>\n\nnamespace kvasir::formats {{\n\n"
      "inline constexpr double kTcqNmse = {:.6f};\n"
      "inline constexpr float kTcqUnit = {:.9g}f;\n\n"
      "// clang-format off\n"
      "inline constexpr int8_t kTcqLevels[512] = {{",
      nmse, table.unit / std::sqrt(double(kRow)));
  for (int s = 0; s < 512; ++s)
    fmt::print("{}{}{}", s ? "," : "", s % 32 ? " " : "\n    ", table.level[size_t(mirrored_state(s))]);
  fmt::print("}};\n// clang-format on\n\n}}  // namespace kvasir::formats\n");
}
