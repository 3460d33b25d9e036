// The tables of the trellis types, by recipe:
//   start     state s gets the normal quantile of (h + 1/2) / 2^L, times 0.97, with h the bits parity(row_i &
//   s): a linear map
//             of the state's bits, chosen once by trying random ones (kMaps)
//   learning  40 rounds of generalised Lloyd over 1000 rows of 512 unit Gaussians: search each row's path
//   with the table
//             rounded to int8 in units of 1 / kUnit, then move every level to the mean of the values that met
//             its state
//   result    the round with the least error, rounded to int8
// The errors printed beside a table are those of other rows (2^21 values) at head sizes 64, 128, 256 and 512.
#include "train_trellis.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "formats/trellis.h"

namespace {

using kvasir::formats::Trellis;

constexpr float kUnit = 40;
constexpr int kRow = 512, kRows = 1000, kRounds = 40;

constexpr int kMaps[3][9] = {{207, 245, 237, 79, 226, 10, 73, 190},
                             {415, 293, 49, 268, 27, 288, 257, 98, 140},
                             {335, 382, 374, 356, 210, 497, 50, 212, 392}};

std::vector<float> gaussians(uint64_t seed, size_t n) {
  const auto uniform = [&seed] {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (double((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
  };
  std::vector<float> out(n);
  for (size_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 6.283185307179586 * uniform();
    out[i] = float(radius * std::cos(angle));
    out[i + 1] = float(radius * std::sin(angle));
  }
  return out;
}

double quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

template <int b>
std::vector<double> start() {
  std::vector<double> levels(Trellis<b>::kStates);
  for (unsigned s = 0; s < levels.size(); ++s) {
    unsigned h = 0;
    for (int i = 0; i < Trellis<b>::kStateBits; ++i)
      h |= unsigned(std::popcount(unsigned(kMaps[b - 2][i]) & s) & 1) << i;
    levels[s] = 0.97 * quantile((h + 0.5) / double(levels.size()));
  }
  return levels;
}

template <int b>
std::vector<int8_t> rounded(const std::vector<double>& levels) {
  std::vector<int8_t> table;
  for (double level : levels) table.push_back(int8_t(std::lround(std::clamp(level * kUnit, -127.0, 127.0))));
  return table;
}

// NMSE of rows of d values under the table, with a least-squares scale each; `means`, when not null, becomes
// the mean of the values that met each state.
template <int b>
double round_of(const std::vector<float>& data, int d, const std::vector<int8_t>& table,
                std::vector<double>* means) {
  std::vector<double> sum(table.size()), count(table.size());
  double error = 0, energy = 0;
  for (size_t at = 0; at < data.size(); at += size_t(d)) {
    const float* x = &data[at];
    double squares = 0, xy = 0, yy = 0;
    for (int i = 0; i < d; ++i) squares += double(x[i]) * x[i];
    const double to_unit = std::sqrt(d / squares);
    int8_t target[kRow];
    uint8_t symbols[kRow];
    uint16_t states[kRow];
    for (int i = 0; i < d; ++i)
      target[i] = int8_t(std::lround(std::clamp(x[i] * to_unit * kUnit, -127.0, 127.0)));
    Trellis<b>::search(target, d, table.data(), symbols);
    Trellis<b>::states(symbols, d, states);
    for (int i = 0; i < d; ++i) {
      const double y = table[states[i]];
      xy += x[i] * y, yy += y * y;
      sum[states[i]] += x[i] * to_unit, ++count[states[i]];
    }
    energy += squares;
    error += squares - xy * xy / yy;
  }
  for (size_t s = 0; means && s < table.size(); ++s)
    if (count[s] > 0) (*means)[s] = sum[s] / count[s];
  return error / energy;
}

template <int b>
void print_table() {
  const std::vector<float> data = gaussians(20260102, size_t(kRows) * kRow),
                           other = gaussians(20260103, size_t(1) << 21);
  std::vector<double> levels = start<b>();
  std::vector<int8_t> best;
  double least = 1;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<int8_t> table = rounded<b>(levels);
    const double error = round_of<b>(data, kRow, table, &levels);
    if (error < least) least = error, best = table;
  }
  fmt::print("inline constexpr TrellisTable<{}> kTrellisTable{} = {{{{", b, b);
  for (int d : {64, 128, 256, 512})
    fmt::print("{}{:.6f}", d == 64 ? "" : ", ", round_of<b>(other, d, best, nullptr));
  fmt::print("}}, {{");
  for (size_t s = 0; s < best.size(); ++s)
    fmt::print("{}{}{}", s ? "," : "", s % 32 ? " " : "\n    ", best[s]);
  fmt::print("}}}};\n");
}

}  // namespace

void print_trellis_tables() {
  fmt::print(
      "// Written by train-codebook trellis; do not edit. Levels of the trellis types by state (trellis.h), "
      "and the errors they\n"
      "// reach on unit Gaussian rows of 64, 128, 256 and 512.\n"
      "#pragma once\n#include <cstdint>\n\nnamespace kvasir::formats {{\n\n"
      "inline constexpr float kTrellisUnit = {}.0f;\n\n"
      "template <int b>\nstruct TrellisTable {{\n  double nmse[4];\n  int8_t level[b == 2 ? 256 : "
      "512];\n}};\n\n"
      "// clang-format off\n",
      int(kUnit));
  print_table<2>();
  print_table<3>();
  print_table<4>();
  fmt::print("// clang-format on\n\n}}  // namespace kvasir::formats\n");
}
