// The best tokens of a row of logits: blocks sort stretches of them and keep the best, until one block is
// left. A key is a logit and its token as one number, so that greater means better and ties go to the lower
// token. Bound: one read of the row.
#pragma once
#include "backends/cuda/kernels/args.h"
#include "graph/choice.h"

namespace kvasir::cuda {

inline constexpr int kChooseStretch = 2048;  // keys a block sorts
// Keys that a scratch buffer for `n` logits needs, each of two.
constexpr int choose_scratch(int n, int most) { return (n + kChooseStretch - 1) / kChooseStretch * most; }
// Leaves the best min(n_best, n) keys of logits[n], best first, and returns where: in `a` or `b`. n_best is
// at most half a stretch.
const uint64_t* choose_best(const Launch& how, const float* logits, int n, int n_best, uint64_t* a,
                            uint64_t* b);

// Draws one of the choice.n_best keys (at most kMaxDrawn), best first: *random_then_key is the random number that
// decides and becomes the drawn key. What choice.random says is not read.
inline constexpr int kMaxDrawn = 128;
void draw_candidate(const Launch& how, const uint64_t* keys, const graph::Choice& choice, uint64_t* random_then_key);

KVASIR_EVERYWHERE inline float key_logit(uint64_t key) {
  const uint32_t ordered = uint32_t(key >> 32),
                 bits = ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered;
  return __builtin_bit_cast(float, bits);
}
constexpr int32_t key_token(uint64_t key) { return int32_t(~uint32_t(key)); }

}  // namespace kvasir::cuda
