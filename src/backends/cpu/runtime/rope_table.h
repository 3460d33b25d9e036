// cos and sin of every rotary pair for the rows of a step. A table entry depends on the position alone: position 64 a + b
// is turned by a then by b, both exact in double, so neighbouring rows and batch sizes never change its bits.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace kvasir::cpu {

class RopeTable {
 public:
  RopeTable(const graph::RopeSpec& spec, int max_rows);

  // Pairs that turn at all; the rest have a factor so large that their angle is zero.
  int n_pairs() const { return n_pairs_; }
  // Before the prepare() calls of a step: lets go of what the last step did not use, once that is most, so that a
  // session whose positions grow without end (a context that shifts) does not.
  void begin_step();
  // Makes position `pos` available to fill() in this step. Call from one thread.
  void prepare(int pos);
  // Writes row `row` for position `pos`. `shifted` selects the second table. Any thread.
  void fill(int row, int pos, bool shifted);
  const float* cos(int row, bool shifted) const { return tables_[shifted].data() + size_t(row) * 2 * n_pairs_; }
  const float* sin(int row, bool shifted) const { return cos(row, shifted) + n_pairs_; }
  // Room for the shifted table (a session that never shifts does not pay for it).
  void allocate_shifted();

 private:
  struct Turn {
    double cos, sin;
  };
  struct Page {
    std::vector<Turn> turns;
    uint64_t step = 0;  // the last that prepared it
  };
  void exact(double pos, std::vector<Turn>& out) const;

  int n_pairs_ = 0;
  int max_rows_ = 0;
  std::vector<double> frequency_;
  std::unordered_map<int, Page> pages_;  // by pos / 64, filled on demand
  uint64_t step_ = 0;
  size_t n_used_ = 0;          // pages that this step prepared
  std::vector<Turn> offsets_;  // [64][n_pairs]
  std::vector<float> tables_[2];
};

}  // namespace kvasir::cpu
