#include "backends/cpu/roofline.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "backends/cpu/rate_meter.h"
#include "backends/cpu/roofline_kernels.h"

namespace kvasir::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kSliceBytes = size_t(32) << 20;    // a thread: about two milliseconds
constexpr size_t kThreadBytes = size_t(512) << 20;  // no cache holds this

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

// Slices of `body(thread, round)` until `seconds` have passed; rates in 1e9 a second.
template <class Body>
Rates measure(ThreadPool& pool, double seconds, const Body& body) {
  std::vector<Slice> slices;
  const auto begin = Clock::now();
  for (int64_t round = 0; round < 5 || seconds_since(begin) < seconds; ++round)
    slices.push_back(measure_slice(pool, [&](int thread) { return body(thread, round) / 1e9; }));
  return summarise(slices);
}

// Rounds of a peak loop that take about a millisecond.
int64_t calibrate(double (*loop)(int64_t)) {
  for (int64_t n = 1000;; n *= 2) {
    const auto start = Clock::now();
    loop(n);
    if (seconds_since(start) > 1e-3) return n;
  }
}

Rates measure_peak(ThreadPool& pool, double seconds, double (*loop)(int64_t)) {
  if (loop == nullptr) return {};
  const int64_t n = calibrate(loop);
  return measure(pool, seconds, [&](int, int64_t) { return loop(n); });
}

}  // namespace

RooflineKernels roofline_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return roofline_avx512();
  if (isa == Isa::kAvx2) return roofline_avx2();
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return roofline_neon();
#endif
  (void)isa;
  return roofline_generic();
}

RooflineKernels roofline_generic() { return {read_scalar, nullptr, f32_scalar}; }

ReadProbe::ReadProbe(ThreadPool& pool, Isa isa) : pool_(pool), read_(roofline_kernels(isa).read) {
  const size_t at_least = (size_t(1) << 30) / size_t(pool.size()) / kSliceBytes * kSliceBytes;
  share_ = at_least > kThreadBytes ? at_least : kThreadBytes;
  buffer_ = AlignedBuffer(share_ * size_t(pool.size()));
  pool.run([&](int thread) { std::memset(buffer_.data() + size_t(thread) * share_, 1, share_); });
}

Slice ReadProbe::measure() {
  const size_t offset = size_t(round_++) % (share_ / kSliceBytes) * kSliceBytes;
  return measure_slice(pool_, [&](int thread) {
    sink_.fetch_xor(read_(buffer_.data() + size_t(thread) * share_ + offset, kSliceBytes),
                    std::memory_order_relaxed);
    return double(kSliceBytes);
  });
}

Roofline measure_roofline(ThreadPool& pool, double seconds, Isa isa) {
  const RooflineKernels kernels = roofline_kernels(isa);
  ReadProbe probe(pool, isa);
  std::vector<Slice> slices;
  const auto begin = Clock::now();
  while (slices.size() < 5 || seconds_since(begin) < seconds * 0.6) {
    slices.push_back(probe.measure());
    slices.back().rate /= 1e9;
  }
  const Rates read = summarise(slices);
  const Rates int8 = measure_peak(pool, seconds * 0.2, kernels.int8);
  const Rates f32 = measure_peak(pool, seconds * 0.2, kernels.f32);
  return {read.median, read.best, int8.median, int8.best, f32.median, f32.best};
}

}  // namespace kvasir::cpu
