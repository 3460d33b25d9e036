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

// Keys of every sequence of a run as the reference reads them.
struct KeySide {
  std::vector<reference::Rows> rows;
  // Of row (position, KV head): its norm, and its largest value in the basis of its type.
  struct Facts {
    std::vector<double> norm, top;
  };
  std::vector<Facts> coded, exact;
};
// `as_stored`: without the rounding that the kernels' arithmetic prescribes.
KeySide read_keys(const Rig& rig, bool as_stored, ThreadPool& workers);
std::vector<reference::Rows> read_values(const Rig& rig, ThreadPool& workers);

// One head of one row against its keys: what does not depend on the values.
struct Scored {
  Place place;
  int head;
  double query_norm;
  reference::Scores scores;
  std::vector<double> bound;  // of each score
};
std::vector<Scored> score_rows(const Rig& rig, std::span<const Place> places, const KeySide& keys,
                               bool as_stored, ThreadPool& workers);

// Outputs of the rows scored, every head.
Comparison compare_outputs(const Rig& rig, std::span<const Scored> scored,
                           std::span<const reference::Rows> values, ThreadPool& workers);
Comparison compare_outputs(const Rig& rig, std::span<const Place> places, ThreadPool& workers);
// Scores read through values that are unit vectors (RigSpec::one_hot), up to one constant a row.
Comparison compare_scores(const Rig& rig, std::span<const Place> places, ThreadPool& workers);
// Root mean square of what the kernel adds to the scores of encoded keys, relative to |q| |k| scale /
// sqrt(d): the error of a code whose rows are off by a relative e has the size e there.
double score_noise(const Rig& rig, std::span<const Place> places, ThreadPool& workers);

}  // namespace kvasir::verify
