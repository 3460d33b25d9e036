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

// One slice: body(thread) on every thread returns the work it did; the result is all work over wall time.
template <class Body>
double slice_rate(ThreadPool& pool, const Body& body) {
  std::vector<double> work(pool.size());
  std::chrono::steady_clock::time_point start;
  double seconds = 0;
  pool.run([&](int thread) {
    pool.barrier();
    if (thread == 0) start = std::chrono::steady_clock::now();
    work[thread] = body(thread);
    pool.barrier();
    if (thread == 0) seconds = seconds_since(start);
  });
  double total = 0;
  for (double w : work) total += w;
  return total / seconds;
}

}  // namespace kvasir::cpu
