#include "backends/cpu/runtime/rope_table.h"

#include <cmath>

#include "base/mutation.h"

namespace kvasir::cpu {

RopeTable::RopeTable(const graph::RopeSpec& spec, int max_rows) : max_rows_(max_rows) {
  constexpr float kNeverTurns = 1e15f;  // files mark untouched pairs with a factor of 1e30
  for (int i = 0; i < spec.n_rot / 2; ++i) {
    const float factor = spec.freq_factors.empty() ? 1.0f : spec.freq_factors[size_t(i)];
    const bool turns = factor < kNeverTurns;
    frequency_.push_back(turns ? std::pow(double(spec.base), -2.0 * i / spec.n_rot) * spec.scale / factor
                               : 0.0);
    if (mutated(Mutation::kRopeBase)) frequency_.back() *= std::pow(1.01, -2.0 * i / spec.n_rot);
    if (turns) n_pairs_ = i + 1;
  }
  frequency_.resize(size_t(n_pairs_));
  for (int b = 0; b < graph::kPageTokens; ++b) {
    std::vector<Turn> turns;
    exact(b, turns);
    offsets_.insert(offsets_.end(), turns.begin(), turns.end());
  }
  tables_[0].resize(size_t(max_rows_) * 2 * n_pairs_);
}

void RopeTable::exact(double pos, std::vector<Turn>& out) const {
  out.resize(size_t(n_pairs_));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = {std::cos(pos * frequency_[i]), std::sin(pos * frequency_[i])};
}

void RopeTable::allocate_shifted() { tables_[1].resize(tables_[0].size()); }

void RopeTable::begin_step() {
  if (pages_.size() > 2 * n_used_ + 16)
    std::erase_if(pages_, [&](const auto& page) { return page.second.step != step_; });
  ++step_;
  n_used_ = 0;
}

void RopeTable::prepare(int pos) {
  const int index = pos / graph::kPageTokens;
  Page& page = pages_[index];
  if (page.turns.empty()) exact(double(index) * graph::kPageTokens, page.turns);
  if (page.step != step_) ++n_used_;
  page.step = step_;
}

void RopeTable::fill(int row, int pos, bool shifted) {
  const Turn* a = pages_.at(pos / graph::kPageTokens).turns.data();
  const Turn* b = offsets_.data() + size_t(pos % graph::kPageTokens) * n_pairs_;
  float* cos_out = tables_[shifted].data() + size_t(row) * 2 * n_pairs_;
  float* sin_out = cos_out + n_pairs_;
  for (int i = 0; i < n_pairs_; ++i) {
    cos_out[i] = float(a[i].cos * b[i].cos - a[i].sin * b[i].sin);
    sin_out[i] = float(a[i].sin * b[i].cos + a[i].cos * b[i].sin);
  }
}

}  // namespace kvasir::cpu
