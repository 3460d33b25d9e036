#include "backends/cuda/kernels/choose/choose.h"
#include "backends/cuda/kernels/choose/key.cuh"

namespace kvasir::cuda {
namespace {

constexpr int kWarps = 16, kThreads = 32 * kWarps, kEach = 4, kList = 32 * kEach;
static_assert(kList == kMaxChosen);

// The best keys that a warp has seen, best first: lane l holds kEach of them from l * kEach on. Missing keys are 0:
// worse than any.
struct List {
  uint64_t key[kEach] = {};
};

// One stage of a bitonic network: keys kDistance apart, in turn descending and ascending over `size` of them.
template <int kDistance>
__device__ __forceinline__ void exchange(List& x, int lane, int size) {
  const auto descends = [&](int i) { return ((lane * kEach + i) & size) == 0; };
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if constexpr (kDistance >= kEach) {
      constexpr int kLanes = kDistance / kEach;
      const uint64_t mine = x.key[i], other = __shfl_xor_sync(~0u, mine, kLanes);
      const bool keeps_greater = ((lane & kLanes) == 0) == descends(i);
      x.key[i] = (mine > other) == keeps_greater ? mine : other;
    } else if ((i & kDistance) == 0) {
      const uint64_t a = x.key[i], b = x.key[i + kDistance];
      if ((a < b) == descends(i)) x.key[i] = b, x.key[i + kDistance] = a;
    }
  }
}

// Puts bitonic runs of kSize keys in order.
template <int kSize>
__device__ __forceinline__ void order(List& x, int lane, int size) {
  if constexpr (kSize > 1) {
    exchange<kSize / 2>(x, lane, size);
    order<kSize / 2>(x, lane, size);
  }
}

template <int kSize = 2>
__device__ __forceinline__ void sort(List& x, int lane) {
  order<kSize>(x, lane, kSize);
  if constexpr (kSize < kList) sort<2 * kSize>(x, lane);
}

// The best of x and of a list in order whose key e, worst first, is backwards(e / kEach, e % kEach).
template <class Backwards>
__device__ __forceinline__ void merge(List& x, int lane, const Backwards& backwards) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint64_t other = backwards(i);
    x.key[i] = x.key[i] > other ? x.key[i] : other;
  }
  order<kList>(x, lane, kList);
}

struct Keys {
  const float* logits;   // or:
  const uint64_t* keys;
  int n;
  __device__ uint64_t at(int i) const { return i >= n ? 0 : logits ? make_key(logits[i], i) : keys[i]; }
};

// The best of keys first, first + 1 .. end - 1, taken 128 at a time; of a warp's later ones only those matter that are
// better than the n_best it has.
__device__ __forceinline__ List warp_best(const Keys& from, int first, int end, int n_best, int lane) {
  List best;
  for (int begin = first; begin < end; begin += kWarps * kList) {
    uint64_t last = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i == (n_best - 1) % kEach) last = best.key[i];
    last = __shfl_sync(~0u, last, (n_best - 1) / kEach);
    List next;
    bool better = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      next.key[i] = from.at(begin + lane * kEach + i);
      better |= next.key[i] > last;
    }
    if (!__any_sync(~0u, better)) continue;
    sort(next, lane);
    merge(best, lane, [&](int i) { return __shfl_sync(~0u, next.key[kEach - 1 - i], 31 - lane); });
  }
  return best;
}

// The best of every warp's, in the first's lists[0].
__device__ __forceinline__ void block_best(List& best, uint64_t (*lists)[kList], int warp, int lane) {
  const auto leave = [&] {
#pragma unroll
    for (int i = 0; i < kEach; ++i) lists[warp][lane * kEach + i] = best.key[i];
  };
  leave();
  for (int half = kWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp >= half) continue;
    merge(best, lane, [&](int i) { return lists[warp + half][kList - 1 - lane * kEach - i]; });
    leave();
  }
  __syncthreads();
}

// The token that `choice` draws from sorted keys replaces the random number that decides.
__device__ __forceinline__ void draw(const uint64_t* keys, graph::Choice choice, uint64_t* random_then_key) {
  __shared__ double own[kList], tempered[kList];
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

// Each block leaves the n_best best keys of its stretch.
__global__ void __launch_bounds__(kThreads)
    best_kernel(Keys from, int stretch, int n_best, uint64_t* out, graph::Choice choice, uint64_t* random_then_key) {
  __shared__ uint64_t lists[kWarps][kList];
  let_next_start();
  wait_for_inputs();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, first = int(blockIdx.x) * stretch;
  List best = warp_best(from, first + warp * kList, min(first + stretch, from.n), n_best, lane);
  block_best(best, lists, warp, lane);
  if (int(threadIdx.x) < n_best) out[int64_t(blockIdx.x) * n_best + threadIdx.x] = lists[0][threadIdx.x];
  if (random_then_key) draw(lists[0], choice, random_then_key);
}

}  // namespace

void choose_best(const std::function<Launch()>& how, const float* logits, int n, int n_best, uint64_t* scratch,
                 uint64_t* best, const Drawing& drawing) {
  const int blocks = choose_stretches(n);
  const auto go = [&](int n_blocks, const Keys& from, int stretch, uint64_t* out, uint64_t* random_then_key) {
    launch(how(), dim3(unsigned(n_blocks)), dim3(kThreads), 0, best_kernel, from, stretch, n_best, out,
           drawing.choice, random_then_key);
  };
  if (blocks == 1) return go(1, {logits, nullptr, n}, n, best, drawing.random_then_key);
  go(blocks, {logits, nullptr, n}, kChooseStretch, scratch, nullptr);
  go(1, {nullptr, scratch, blocks * n_best}, blocks * n_best, best, drawing.random_then_key);
}

}  // namespace kvasir::cuda
