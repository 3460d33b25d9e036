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

constexpr int kAround = 48;   // some ten times the memory of a path
constexpr double kUnit = 40;  // levels are in 1 / 40 of the root mean square

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

  void encode(const double* x, int d, std::byte* row) const override {
    std::memset(row, 0, row_bytes(d));
    const double rms = root_of_squares(x, d) / std::sqrt(double(d));
    if (rms == 0) return;
    // Past both ends of the ring, far enough that the free ends of the path do not matter between them.
    std::vector<float> target;
    for (int t = -kAround; t < d + kAround; ++t) target.push_back(float(target_of(x[(t + d) % d], rms)));
    const std::vector<int> states = best_states(target);
    for (int t = 0; t < d; ++t)
      put_bits(row, t * bits_, bits_, states[size_t(kAround + t)] & ((1 << bits_) - 1));
    const uint16_t scale = to_f16(scale_for(x, d, row));
    if ((scale & 0x7fff) == 0) std::memset(row, 0, row_bytes(d));
    put_u16(row + d * bits_ / 8, scale);
  }

  // Neither search tries every seam. A seam in the wrong place binds L / b symbols, each of which then costs
  // what a scalar code of b bits does, 2.72 / 4^b (Panter and Dite), times four for the worst of them; 2 %
  // and a twelfth a value go to a search over targets rounded to whole units. The mean over rows is held to
  // theory elsewhere.
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte* ideal_row) const override {
    RowFaults faults;
    const double rms = root_of_squares(x, d) / std::sqrt(double(d));
    const double stored = from_f16(u16_at(row + d * bits_ / 8)), ideal = scale_for(x, d, row);
    const double off = std::fabs(stored - ideal), step = f16_step(ideal);
    if (!(off <= 0.5 * step + kScaleError * std::fabs(ideal))) {
      ++faults.scales;
      faults.scale_ulps = off / step;
    }
    if (rms == 0 || stored == 0) return faults;
    std::vector<double> target;
    for (int t = 0; t < d; ++t) target.push_back(target_of(x[t], rms));
    const double cost = cost_of(target, row), best = cost_of(target, ideal_row);
    const double memory = double(bits_ == 2 ? 8 : 9) / bits_,
                 scalar = 2.72 * std::pow(0.25, bits_) * kUnit * kUnit;
    const double allowed = 1.02 * best + d / 12.0 + 4 * memory * scalar;
    if (cost > allowed) {
      faults.codes = 1;
      faults.worst = cost / allowed - 1;
    }
    return faults;
  }

 private:
  // Level of each value, in units.
  std::vector<float> levels_of(const std::byte* row, int d) const {
    std::vector<float> out;
    int state = 0;
    for (int t = -9; t < d; ++t) {  // nine symbols fill any state
      state = (state << bits_ | bits_at(row, (t + d) % d * bits_, bits_)) % n_states_;
      if (t >= 0) out.push_back(levels_[size_t(state)]);
    }
    return out;
  }

  static double target_of(double x, double rms) { return std::clamp(x * kUnit / rms, -127.0, 127.0); }

  double cost_of(const std::vector<double>& target, const std::byte* row) const {
    const std::vector<float> path = levels_of(row, int(target.size()));
    double cost = 0;
    for (size_t t = 0; t < target.size(); ++t)
      cost += (target[t] - double(path[t])) * (target[t] - double(path[t]));
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

  // States of the cheapest path through `target` with free ends. Costs are f32: a path that is worse by its
  // rounding will do.
  std::vector<int> best_states(const std::vector<float>& target) const {
    const size_t n = size_t(n_states_), branches = size_t(1) << bits_, groups = n / branches;
    // [t][s]: of the cheapest path that ends before value t, in state s. State s of t follows s / branches +
    // p groups of t - 1, whichever symbol p left it.
    std::vector<float> costs((target.size() + 1) * n);
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
    size_t state = size_t(std::min_element(last, last + n) - last);
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
