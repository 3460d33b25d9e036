// Rates of work that a team of threads does together, in slices with a barrier on both sides.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "base/thread_pool.h"

namespace kvasir::cpu {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Units of work a second.
struct Rates {
  double median = 0, best = 0;
};

inline Rates summarise(std::vector<double> rates) {
  if (rates.empty()) return {};
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.back()};
}

// One slice: body(thread) on every thread returns the work it did; the result is all work over the wall time
// from the first start to the last end. Every thread stamps its own: one that is descheduled at the barrier
// must not hide the others' time.
template <class Body>
double slice_rate(ThreadPool& pool, const Body& body) {
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Share {
    Clock::time_point start, end;
    double work = 0;
  };
  std::vector<Share> shares(pool.size());
  pool.run([&](int thread) {
    Share& share = shares[thread];
    pool.barrier();
    share.start = Clock::now();
    share.work = body(thread);
    share.end = Clock::now();
  });
  Share all = shares[0];
  for (size_t i = 1; i < shares.size(); ++i) {
    all.start = std::min(all.start, shares[i].start);
    all.end = std::max(all.end, shares[i].end);
    all.work += shares[i].work;
  }
  return all.work / std::chrono::duration<double>(all.end - all.start).count();
}

}  // namespace kvasir::cpu
