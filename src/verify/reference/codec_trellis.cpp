// tbq2_ht, tbq3_ht, tbq4_ht, from the description in docs/formats.md.
//
// A row is one head in the rotated basis: symbol t in bits b t .. b t + b - 1, then an f16 scale. State t is
// the last L bits of the ring of symbols that ends in symbol t, newest lowest (L = 8 for 2 bits, else 9);
// value t is scale * level[state]. The scale is the least-squares one; when it is 0 the row is zero bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "verify/reference/codec_scaled.h"
#include "verify/reference/half.h"
#include "verify/reference/trellis_levels.h"

namespace kvasir::verify::reference {
namespace {

constexpr int kBefore = 32, kAfter = 16;  // values around the ends that the seam is chosen from
constexpr double kUnit = 40;              // levels are in 1 / 40 of the root mean square

class TrellisCodec final : public Codec {
 public:
  TrellisCodec(std::string_view name, int bits, const int8_t* levels, const double* nmse)
      : name_(name),
        bits_(bits),
        n_states_(bits == 2 ? 256 : 512),
        levels_(levels, levels + n_states_),
        nmse_(nmse) {}

  std::string_view name() const override { return name_; }
  size_t row_bytes(int d) const override { return size_t(d * bits_ / 8 + 2); }
  bool rotated() const override { return true; }
  void to_basis(Side side, double* x, int d) const override { rotate(side, x, d); }
  void from_basis(Side side, double* r, int d) const override { unrotate(side, r, d); }
  bool searches() const override { return true; }
  double theory(int d) const override { return nmse_[d == 64 ? 0 : d == 128 ? 1 : d == 256 ? 2 : 3]; }

  void decode(const std::byte* row, int d, double* out) const override {
    const double scale = from_f16(u16_at(row + d * bits_ / 8));
    const std::vector<float> path = levels_of(row, d);
    for (int t = 0; t < d; ++t) out[t] = scale * double(path[size_t(t)]);
  }

  double largest_scale(const std::byte* row, int d) const override {
    return from_f16(u16_at(row + d * bits_ / 8));
  }

  void encode(const double* x, int d, std::byte* row) const override {
    std::memset(row, 0, row_bytes(d));
    const double rms = root_of_squares(x, d) / std::sqrt(double(d));
    if (rms == 0) return;
    std::vector<float> targets, ends;
    for (int t = 0; t < d; ++t) targets.push_back(float(whole_of(target_of(x[t], rms))));
    for (int t = -kBefore; t < kAfter; ++t) ends.push_back(targets[size_t((t + d) % d)]);
    const std::vector<int> states = best_states(targets, best_states(ends, -1)[kBefore - 1]);
    for (int t = 0; t < d; ++t) put_bits(row, t * bits_, bits_, states[size_t(t)] & ((1 << bits_) - 1));
    const uint16_t scale = to_f16(scale_for(x, d, row));
    if ((scale & 0x7fff) == 0) std::memset(row, 0, row_bytes(d));
    put_u16(row + d * bits_ / 8, scale);
  }

  // A row is the cheapest path of its own seam (the state that both its ends share), over targets in whole
  // units, and its seam is the one that the description's search finds. A target within single precision's
  // error of a half may be either neighbour: two paths' costs move apart by less than 512 for each, and the
  // search may end in another seam. One in the wrong place binds L / b symbols, each of which then costs what
  // a scalar code of b bits does, 2.72 / 4^b (Panter and Dite), times four for the worst of them. The mean
  // over rows is held to theory elsewhere.
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte* best_row) const override {
    RowFaults faults;
    const double rms = root_of_squares(x, d) / std::sqrt(double(d));
    const double stored = from_f16(u16_at(row + d * bits_ / 8)), ideal = scale_for(x, d, row);
    const double off = std::fabs(stored - ideal), step = f16_step(ideal);
    if (!(off <= 0.5 * step + kScaleError * std::fabs(ideal))) {
      ++faults.scales;
      faults.scale_ulps = off / step;
    }
    if (rms == 0 || stored == 0) return faults;
    std::vector<double> whole;
    double halves = 0;
    for (int t = 0; t < d; ++t) {
      const double target = target_of(x[t], rms);
      whole.push_back(whole_of(target));
      halves += std::fabs(std::fabs(target - whole.back()) - 0.5) < 1e-4;
    }
    const double memory = double(bits_ == 2 ? 8 : 9) / bits_;
    const double seam = 4 * memory * 2.72 * std::pow(0.25, bits_) * kUnit * kUnit;
    std::vector<float> least;
    for (const int state : best_states({whole.begin(), whole.end()}, seam_of(row, d)))
      least.push_back(levels_[size_t(state)]);
    const double cost = cost_of(whole, levels_of(row, d)), ties = 512 * halves;
    for (const double allowed : {cost_of(whole, least) + ties,
                                 cost_of(whole, levels_of(best_row, d)) + ties + (halves > 0 ? seam : 0)}) {
      if (cost <= allowed) continue;
      faults.codes = 1;
      faults.worst = std::max(faults.worst, cost / allowed - 1);
    }
    return faults;
  }

 private:
  int next_state(int state, const std::byte* row, int d, int t) const {
    return (state << bits_ | bits_at(row, (t + d) % d * bits_, bits_)) % n_states_;
  }
  // The state after the last symbol, which is that before the first. Nine symbols fill any state.
  int seam_of(const std::byte* row, int d) const {
    int state = 0;
    for (int t = -9; t < 0; ++t) state = next_state(state, row, d, t);
    return state;
  }
  // Level of each value, in units.
  std::vector<float> levels_of(const std::byte* row, int d) const {
    std::vector<float> out;
    int state = seam_of(row, d);
    for (int t = 0; t < d; ++t) {
      state = next_state(state, row, d, t);
      out.push_back(levels_[size_t(state)]);
    }
    return out;
  }

  static double target_of(double x, double rms) { return std::clamp(x * kUnit / rms, -127.0, 127.0); }

  static double whole_of(double target) { return std::nearbyint(target); }

  static double cost_of(const std::vector<double>& target, const std::vector<float>& path) {
    double cost = 0;
    for (size_t t = 0; t < target.size(); ++t) {
      const double miss = target[t] - double(path[t]);
      cost += miss * miss;
    }
    return cost;
  }

  double scale_for(const double* x, int d, const std::byte* row) const {
    const std::vector<float> path = levels_of(row, d);
    double xy = 0, yy = 0;
    for (int t = 0; t < d; ++t) {
      const double level = double(path[size_t(t)]);
      xy += x[t] * level;
      yy += level * level;
    }
    return yy > 0 ? std::max(0.0, xy / yy) : 0;
  }

  // States of the cheapest path through `target`, from and to state `seam`, or with free ends when that is
  // negative. Costs are f32: whole numbers are exact, otherwise a path that is worse by its rounding will do.
  std::vector<int> best_states(const std::vector<float>& target, int seam) const {
    const size_t n = size_t(n_states_), branches = size_t(1) << bits_, groups = n / branches;
    // [t][s]: of the cheapest path that ends before value t, in state s. State s of t follows s / branches +
    // p groups of t - 1, whichever symbol p left it.
    std::vector<float> costs((target.size() + 1) * n);
    if (seam >= 0) {
      std::fill_n(costs.begin(), n, 1e30f);
      costs[size_t(seam)] = 0;
    }
    for (size_t t = 0; t < target.size(); ++t) {
      const float* before = &costs[t * n];
      float* after = &costs[(t + 1) * n];
      float best[128];
      std::copy_n(before, groups, best);
      for (size_t p = 1; p < branches; ++p)
        for (size_t g = 0; g < groups; ++g)
          best[g] = before[p * groups + g] < best[g] ? before[p * groups + g] : best[g];
      for (size_t g = 0; g < groups; ++g)
        for (size_t o = 0; o < branches; ++o) {
          const float miss = target[t] - levels_[g * branches + o];
          after[g * branches + o] = best[g] + miss * miss;
        }
    }
    const float* last = &costs[target.size() * n];
    size_t state = seam >= 0 ? size_t(seam) : size_t(std::min_element(last, last + n) - last);
    std::vector<int> states(target.size());
    for (size_t t = target.size(); t-- > 0;) {
      states[t] = int(state);
      size_t from = state / branches;
      for (size_t p = 1; p < branches; ++p)
        if (costs[t * n + state / branches + p * groups] < costs[t * n + from])
          from = state / branches + p * groups;
      state = from;
    }
    return states;
  }

  std::string_view name_;
  int bits_, n_states_;
  std::vector<float> levels_;
  const double* nmse_;
};

}  // namespace

void add_trellis(std::vector<std::unique_ptr<Codec>>& list) {
  list.push_back(std::make_unique<TrellisCodec>("tbq2_ht", 2, kTrellisLevels2, kTrellisNmse2));
  list.push_back(std::make_unique<TrellisCodec>("tbq3_ht", 3, kTrellisLevels3, kTrellisNmse3));
  list.push_back(std::make_unique<TrellisCodec>("tbq4_ht", 4, kTrellisLevels4, kTrellisNmse4));
}

}  // namespace kvasir::verify::reference
