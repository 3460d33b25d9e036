#include "backends/cpu/roofline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "backends/cpu/roofline_kernels.h"
#include "base/aligned.h"

namespace kvasir::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kSliceBytes = size_t(32) << 20;  // a thread: about two milliseconds

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t read_scalar(const std::byte* data, size_t bytes) {
  uint64_t sum[4] = {};
  for (size_t at = 0; at < bytes; at += 32)
    for (int i = 0; i < 4; ++i) {
      uint64_t word;
      std::memcpy(&word, data + at + 8 * i, 8);
      sum[i] ^= word;
    }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

double f32_scalar(int64_t n) {
  float sum[8] = {};
  volatile float source = 0;
  const float x = source;
  for (int64_t i = 0; i < n; ++i)
    for (float& s : sum) s = s * x + x;
  source = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  return double(n) * 8 * 2;
}

RooflineKernels kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return roofline_avx512();
  if (isa == Isa::kAvx2) return roofline_avx2();
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return roofline_neon();
#endif
  (void)isa;
  return roofline_generic();
}

struct Rates {
  double median = 0, best = 0;
};

// Runs `slice(thread, round)` on all threads, round after round, until `seconds` have passed. Each call
// returns the work it did; a round's rate is all threads' work over its wall time.
template <class Slice>
Rates measure(ThreadPool& pool, double seconds, Slice slice) {
  std::vector<double> work(pool.size());
  std::vector<double> rates;
  bool more = true;
  Clock::time_point start, begin = Clock::now();
  pool.run([&](int thread) {
    for (int64_t round = 0;; ++round) {
      pool.barrier();
      if (thread == 0) start = Clock::now();
      work[thread] = slice(thread, round);
      pool.barrier();
      if (thread == 0) {
        double total = 0;
        for (double w : work) total += w;
        rates.push_back(total / since(start));
        more = since(begin) < seconds || rates.size() < 5;
      }
      pool.barrier();
      if (!more) return;
    }
  });
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2] / 1e9, rates.back() / 1e9};
}

// Rounds of a peak loop that take about a millisecond.
int64_t calibrate(double (*loop)(int64_t)) {
  for (int64_t n = 1000;; n *= 2) {
    const auto start = Clock::now();
    loop(n);
    if (since(start) > 1e-3) return n;
  }
}

Rates measure_peak(ThreadPool& pool, double seconds, double (*loop)(int64_t)) {
  if (loop == nullptr) return {};
  const int64_t n = calibrate(loop);
  return measure(pool, seconds, [&](int, int64_t) { return loop(n); });
}

Rates measure_read(ThreadPool& pool, double seconds, const RooflineKernels& kernels) {
  const size_t share =
      std::max(size_t(512) << 20, (size_t(1) << 30) / pool.size() / kSliceBytes * kSliceBytes);
  const size_t slices = share / kSliceBytes;
  AlignedBuffer buffer(share * pool.size());
  pool.run([&](int thread) { std::memset(buffer.data() + thread * share, 1, share); });
  std::atomic<uint64_t> sink{0};
  return measure(pool, seconds, [&](int thread, int64_t round) {
    const std::byte* at = buffer.data() + thread * share + size_t(round) % slices * kSliceBytes;
    sink.fetch_add(kernels.read(at, kSliceBytes), std::memory_order_relaxed);
    return double(kSliceBytes);
  });
}

}  // namespace

RooflineKernels roofline_generic() { return {read_scalar, nullptr, f32_scalar}; }

Roofline measure_roofline(ThreadPool& pool, double seconds, Isa isa) {
  const RooflineKernels kernels = kernels_of(isa);
  const Rates read = measure_read(pool, seconds * 0.6, kernels);
  const Rates int8 = measure_peak(pool, seconds * 0.2, kernels.int8);
  const Rates f32 = measure_peak(pool, seconds * 0.2, kernels.f32);
  return {read.median, read.best, int8.median, int8.best, f32.median, f32.best};
}

}  // namespace kvasir::cpu
