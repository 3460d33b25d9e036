#include <algorithm>

#include "backends/cuda/kernels/choose/choose.h"
#include "backends/cuda/kernels/choose/key.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kThreads = 512;

// Keys [stretch] of `logits`, or of `keys` when there are no logits, best first; the first n_best are kept.
// Missing keys are 0: worse than any.
__global__ void __launch_bounds__(kThreads)
    sort_kernel(const float* logits, const uint64_t* keys, int n, int n_best, uint64_t* out) {
  __shared__ uint64_t sorted[kChooseStretch];
  let_next_start();
  wait_for_inputs();
  const int first = int(blockIdx.x) * kChooseStretch, t = int(threadIdx.x);
  for (int i = t; i < kChooseStretch; i += kThreads)
    sorted[i] = first + i >= n ? 0 : logits ? make_key(logits[first + i], first + i) : keys[first + i];
  for (int size = 2; size <= kChooseStretch; size *= 2)
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int i = t; i < kChooseStretch / 2; i += kThreads) {
        const int low = i / distance * 2 * distance + i % distance, high = low + distance;
        const bool descending = (low & size) == 0;
        const uint64_t a = sorted[low], b = sorted[high];
        if ((a < b) == descending) sorted[low] = b, sorted[high] = a;
      }
    }
  __syncthreads();
  for (int i = t; i < n_best; i += kThreads) out[int64_t(blockIdx.x) * n_best + i] = sorted[i];
}

__global__ void __launch_bounds__(kMaxDrawn)
    draw_kernel(const uint64_t* keys, graph::Choice choice, uint64_t* random_then_key) {
  __shared__ double own[kMaxDrawn], tempered[kMaxDrawn];
  let_next_start();
  wait_for_inputs();
  const int i = int(threadIdx.x);
  if (i < choice.n_best) {
    const float best = key_logit(keys[0]), logit = key_logit(keys[i]);
    own[i] = graph::choice_weight(logit, best, 1);
    tempered[i] = graph::choice_weight(logit, best, double(choice.temperature));
  }
  __syncthreads();
  if (i > 0) return;
  choice.random = *random_then_key;
  const auto at = [](const double* weights) { return [weights](int c) { return weights[c]; }; };
  *random_then_key = keys[graph::choose_candidate(choice, choice.n_best, at(own), at(tempered))];
}

}  // namespace

void draw_candidate(const Launch& how, const uint64_t* keys, const graph::Choice& choice, uint64_t* random_then_key) {
  launch(how, dim3(1), dim3(kMaxDrawn), 0, draw_kernel, keys, choice, random_then_key);
}

const uint64_t* choose_best(const Launch& how, const float* logits, int n, int n_best, uint64_t* a,
                            uint64_t* b) {
  const auto stretches = [](int count) { return (count + kChooseStretch - 1) / kChooseStretch; };
  int left = stretches(n);
  launch(how, dim3(unsigned(left)), dim3(kThreads), 0, sort_kernel, logits,
         static_cast<const uint64_t*>(nullptr), n, n_best, a);
  while (left > 1) {
    const int keys = left * n_best;
    left = stretches(keys);
    launch(how, dim3(unsigned(left)), dim3(kThreads), 0, sort_kernel, static_cast<const float*>(nullptr),
           static_cast<const uint64_t*>(a), keys, n_best, b);
    std::swap(a, b);
  }
  return a;
}

}  // namespace kvasir::cuda
