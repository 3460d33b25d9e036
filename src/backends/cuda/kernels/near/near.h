// Attention of a few rows, each of a sequence of its own, over few keys (sliding windows, short contexts), as
// one launch: norm, turn and rotation of the heads, the write into the cache, scores, softmax, mix and the
// merge. The keys of a KV head are shared by a cluster of eight blocks; what earlier steps stored is read
// before the launch waits for the projections of this one. Bound: visible keys and values are read once.
#pragma once
#include "backends/cuda/kernels/kv_append/kv_append.h"

namespace kvasir::cuda {

inline constexpr int kNearKeys = 512;  // that a row sees at most, whatever the cache
int near_keys(const KvView& kv);       // and of this one: twice as many of some windows

// What the launch reads of a HeadJob; no `in`: nothing to make.
struct NearJob {
  const float *in = nullptr, *w = nullptr, *turns = nullptr;
  int n_head = 0, n_pairs = 0;
  float eps = 0, scale = 1;
  bool norm = false;
};

struct NearArgs {
  HeadArgs
      heads;  // n_jobs 0: `q` is ready; else the queries' job and, for a cache of its own, keys' and values'
  KvView kv;
  const float* q = nullptr;  // [n_rows][n_head * head_dim], in the basis of the keys
  float* out = nullptr;      // [n_rows][n_head * head_dim]
  int n_head = 0, n_rows = 0;
  bool output_rows = false;
  bool one_row = false, one_sequence = false;  // of the step: what need not be looked up
  int region_keys = 0, region_each = 0, exact_before_values = 0,
      exact_each = 0;  // attend_near() fills them in
  float scale = 1, softcap = 0;
  NearJob jobs[3];  // attend_near(): of queries, keys, values
};

// Types, head sizes and turns that it takes. The caller sees to the number of keys and to shifts: there is
// none.
bool has_near(const NearArgs& args);
void attend_near(const Launch& how, const NearArgs& args, const StepView& step);

}  // namespace kvasir::cuda
