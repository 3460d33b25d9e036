// Rates of work that a team of threads does together, in slices with a barrier on both sides.
#pragma once
#include <time.h>

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

// One slice: units of work a second, and the part of the team's time in which it really held a core.
struct Slice {
  double rate = 0, busy = 0;
  // Other programs took less than a twentieth of it.
  bool clean() const { return busy > 0.95; }
};

inline double thread_cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// body(thread) on every thread returns the work it did; the rate is all work over the wall time from the
// first start to the last end. Every thread stamps its own: one that is descheduled at the barrier must not
// hide the others' time.
template <class Body>
Slice measure_slice(ThreadPool& pool, const Body& body) {
  using Clock = std::chrono::steady_clock;
  struct alignas(64) Share {
    Clock::time_point start, end;
    double work = 0, cpu = 0;
  };
  std::vector<Share> shares(pool.size());
  pool.run([&](int thread) {
    Share& share = shares[thread];
    pool.barrier();
    const double cpu = thread_cpu_seconds();
    share.start = Clock::now();
    share.work = body(thread);
    share.end = Clock::now();
    share.cpu = thread_cpu_seconds() - cpu;
  });
  Share all = shares[0];
  for (size_t i = 1; i < shares.size(); ++i) {
    all.start = std::min(all.start, shares[i].start);
    all.end = std::max(all.end, shares[i].end);
    all.work += shares[i].work;
    all.cpu += shares[i].cpu;
  }
  const double seconds = std::chrono::duration<double>(all.end - all.start).count();
  return {all.work / seconds, all.cpu / (seconds * pool.size())};
}

template <class Body>
double slice_rate(ThreadPool& pool, const Body& body) {
  return measure_slice(pool, body).rate;
}

// Rates of the clean slices; of all of them, marked, when fewer than three are clean.
struct CleanRates : Rates {
  bool contended = false;
};

inline CleanRates summarise(const std::vector<Slice>& slices) {
  std::vector<double> clean, all;
  for (const Slice& slice : slices) {
    all.push_back(slice.rate);
    if (slice.clean()) clean.push_back(slice.rate);
  }
  const bool contended = clean.size() < 3;
  return {summarise(contended ? std::move(all) : std::move(clean)), contended};
}

}  // namespace kvasir::cpu
