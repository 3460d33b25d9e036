#include "base/thread_pool.h"

#include <thread>
#include <vector>

#include "base/error.h"

namespace kvasir {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Long enough to cover the gap between two ops, short enough to give the core back when nothing comes. In a
// team larger than the machine the one that is waited for may need this core.
constexpr int kSpins = 4000, kSpinsCrowded = 20;

// Waits until `word` differs from `seen`.
void wait_change(const std::atomic<uint32_t>& word, uint32_t seen, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    cpu_relax();
  }
  while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  int n_threads = 1, spins = kSpins;
  std::vector<std::thread> workers;
  const std::function<void(int)>* body = nullptr;
  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> phase{0};
  std::atomic<bool> stop{false};

  void barrier() {
    if (n_threads == 1) return;
    const uint32_t seen = phase.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(n_threads)) {
      arrived.store(0, std::memory_order_relaxed);
      phase.fetch_add(1, std::memory_order_release);
      phase.notify_all();
    } else {
      wait_change(phase, seen, spins);
    }
  }

  void work(int thread) {
    for (uint32_t seen = 0;;) {
      wait_change(generation, seen, spins);
      ++seen;
      if (stop.load(std::memory_order_acquire)) return;
      (*body)(thread);
      barrier();
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : impl_(std::make_unique<Impl>()) {
  if (n_threads < 1 || n_threads > 1024)
    fail(ErrorCode::kUsage, "number of threads is {}; it must be between 1 and 1024", n_threads);
  impl_->n_threads = n_threads;
  if (const unsigned cores = std::thread::hardware_concurrency(); cores > 0 && unsigned(n_threads) > cores)
    impl_->spins = kSpinsCrowded;
  for (int i = 1; i < n_threads; ++i) impl_->workers.emplace_back([this, i] { impl_->work(i); });
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->generation.fetch_add(1, std::memory_order_release);
  impl_->generation.notify_all();
  for (auto& worker : impl_->workers) worker.join();
}

int ThreadPool::size() const { return impl_->n_threads; }

void ThreadPool::run(const std::function<void(int)>& body) {
  impl_->body = &body;
  impl_->generation.fetch_add(1, std::memory_order_release);
  impl_->generation.notify_all();
  body(0);
  impl_->barrier();
}

void ThreadPool::barrier() { impl_->barrier(); }

}  // namespace kvasir
