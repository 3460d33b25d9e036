// One attention run against double precision over the rows the cache holds.
#pragma once
#include <vector>

#include "base/thread_pool.h"
#include "verify/checks/rig.h"
#include "verify/compare.h"
#include "verify/reference/attention.h"

namespace kvasir::verify {

// A row of the run that is compared.
struct Place {
  int seq, pos;
};

// First and last rows of each sequence, both sides of page edges, and some between.
std::vector<Place> interesting_rows(const RigSpec& spec, int most);

// Outputs of the rows named, every head.
Comparison compare_outputs(const Rig& rig, std::span<const Place> places, ThreadPool& workers);
// Scores read through values that are unit vectors (RigSpec::one_hot), up to one constant a row.
Comparison compare_scores(const Rig& rig, std::span<const Place> places, ThreadPool& workers);
// Root mean square of what the kernel adds to the scores of encoded keys, relative to |q| |k| scale /
// sqrt(d): the error of a code whose rows are off by a relative e has the size e there.
double score_noise(const Rig& rig, std::span<const Place> places, ThreadPool& workers);

}  // namespace kvasir::verify
