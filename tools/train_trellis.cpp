// The tables of the trellis types, by recipe. Every table is odd: states s and s + 2^(L-1) have levels y and
// -1 - y (in units of 1 / kUnit), so that a kernel keeps half of it and takes the complement for the rest.
//   start     state s gets the normal quantile of (h + 1/2) / 2^L, times 0.97, with h the bits parity(row_i &
//             s): a linear map of the state's bits in which the first bit turns every bit of h. The maps
//             (kMaps) are the best of some hundred random ones after learning.
//   learning  40 rounds of generalised Lloyd over 1000 rows of 512 unit Gaussians: search each row's path
//             with the table rounded to int8, then move every pair of levels to the mean of the values that
//             met its states, those of the second turned over
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

constexpr int kMaps[3][9] = {{234, 248, 164, 200, 199, 236, 135, 202},
                             {400, 431, 314, 351, 323, 384, 499, 301, 433},
                             {277, 508, 426, 509, 299, 474, 260, 301, 406}};

}  // namespace

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

namespace {

template <int b>
std::vector<double> start() {
  std::vector<double> levels(Trellis<b>::kStates);  // in units of 1 / kUnit
  for (unsigned s = 0; s < levels.size(); ++s) {
    unsigned h = 0;
    for (int i = 0; i < Trellis<b>::kStateBits; ++i)
      h |= unsigned(std::popcount(unsigned(kMaps[b - 2][i]) & s) & 1) << i;
    levels[s] = 0.97 * kUnit * quantile((h + 0.5) / double(levels.size()));
  }
  return levels;
}

std::vector<int8_t> rounded(const std::vector<double>& levels) {
  std::vector<int8_t> table(levels.size());
  const size_t half = table.size() / 2;
  for (size_t s = 0; s < half; ++s) {
    table[s] = int8_t(std::lround(std::clamp(levels[s], -127.0, 126.0)));
    table[s + half] = int8_t(~table[s]);
  }
  return table;
}

// Sum and number of the values that met each state, in units of 1 / kUnit.
struct Meetings {
  std::vector<double> sum, count;
  explicit Meetings(size_t states) : sum(states), count(states) {}

  void move(std::vector<double>& levels) const {
    const size_t half = levels.size() / 2;
    for (size_t s = 0; s < half; ++s) {
      const double n = count[s] + count[s + half];
      if (n > 0) levels[s] = (sum[s] - sum[s + half] - count[s + half]) / n;
      levels[s + half] = -1 - levels[s];
    }
  }
};

// NMSE of rows of d values under the table, with a least-squares scale each; adds to `met` when not null.
template <int b>
double round_of(const std::vector<float>& data, int d, const std::vector<int8_t>& table, Meetings* met) {
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
      if (met) met->sum[states[i]] += x[i] * to_unit * kUnit, ++met->count[states[i]];
    }
    energy += squares;
    error += squares - xy * xy / yy;
  }
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
    const std::vector<int8_t> table = rounded(levels);
    Meetings met(table.size());
    const double error = round_of<b>(data, kRow, table, &met);
    met.move(levels);
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
