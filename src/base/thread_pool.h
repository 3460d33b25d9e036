// A fixed team of threads that runs one function together, with a barrier between phases. Threads spin briefly, then
// sleep, so that an over-committed machine is not held by idle waiters. Work must be split by shape, never by the
// team's size: take items with `TaskCounter` and results are the same bits for any number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace kvasir {

class ThreadPool {
 public:
  // n_threads >= 1, the calling thread included. Throws Error{kUsage} otherwise.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  // Calls body(thread) on every thread of the team, the caller as thread 0; returns when all have returned.
  // `body` must not throw. Not re-entrant.
  void run(const std::function<void(int thread)>& body);
  // Inside run(): waits until every thread of the team has arrived.
  void barrier();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Hands out 0, 1, 2, ... to whichever thread asks next. reset() only between barriers.
class alignas(64) TaskCounter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> next_{0};
};

}  // namespace kvasir
