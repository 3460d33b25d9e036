// Where a head keeps its size before it is encoded.
//
// q . k = (q s) . (k / s) for any s, and RMS norm with a weight precedes both, so s costs nothing: it goes into
// the weights of the two norms. A head-wide code spreads its error evenly over the head: the error of a score
// goes with |q s|^2 |k / s|^2, which is least for s^2 = |k| / |q| channel by channel (Cauchy-Schwarz). What a
// file tells of |k| and |q| are the weights of its norms. RoPE turns pairs (i, i + n_rot / 2), which commutes
// with one s for both; a pair whose frequency factor makes it stand still has two.
#pragma once
#include <span>
#include <vector>

#include "graph/graph.h"

namespace kvasir::models {

// s [head_dim], each in [1/16, 16], geometric mean 1. k_norm [head_dim]; q_norms: those of every layer that
// reads these keys. All 1 when the error of scores would fall by less than 5 %, or when a weight is not finite.
std::vector<float> key_balance(std::span<const float> k_norm, std::span<const std::vector<float>> q_norms,
                               const graph::RopeSpec& rope);

}  // namespace kvasir::models
