// The best tokens of a row of logits, and one drawn from them. A key is a logit and its token as one number, so that
// greater means better and ties go to the lower token. Blocks keep the best of a stretch of the row each, then one block
// keeps the best of theirs; a warp holds its best in registers and sorts 128 more at a time. Bound: one read of the row.
#pragma once
#include <functional>

#include "backends/cuda/kernels/args.h"
#include "graph/choice.h"

namespace kvasir::cuda {

inline constexpr int kMaxChosen = 128;       // keys, of one row
inline constexpr int kChooseStretch = 2048;  // keys a block takes
constexpr int choose_stretches(int n) { return (n + kChooseStretch - 1) / kChooseStretch; }
// Keys that the scratch buffer for `n` logits needs.
constexpr int choose_scratch(int n) { return choose_stretches(n) * kMaxChosen; }

struct Drawing {
  graph::Choice choice;                 // its random number is not read
  uint64_t* random_then_key = nullptr;  // the random number that decides; becomes the drawn key. Null: none is drawn
};
// Leaves the best min(n_best, n) keys of logits[n] in best[kMaxChosen], best first.
void choose_best(const std::function<Launch()>& how, const float* logits, int n, int n_best, uint64_t* scratch,
                 uint64_t* best, const Drawing& drawing = {});

KVASIR_EVERYWHERE inline float key_logit(uint64_t key) {
  const uint32_t ordered = uint32_t(key >> 32),
                 bits = ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered;
  return __builtin_bit_cast(float, bits);
}
constexpr int32_t key_token(uint64_t key) { return int32_t(~uint32_t(key)); }

}  // namespace kvasir::cuda
