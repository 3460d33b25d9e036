// What this machine can do at most: streaming read bandwidth and register-only peaks, measured as the kernels
// use it (the best ISA, the caller's threads). Work is cut into slices of about a millisecond that all
// threads run together; on a shared machine the median slice is what a program gets and the best slice what
// the hardware can do.
#pragma once
#include <atomic>
#include <cstdint>

#include "backends/cpu/rate_meter.h"
#include "base/aligned.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"

namespace kvasir::cpu {

struct Roofline {
  double read_gb_s = 0, read_best_gb_s = 0;  // 1e9 bytes/s from a buffer of 512 MiB a thread (at least 1 GiB)
  double int8_gops = 0, int8_best_gops = 0;  // 1e9 int8 operations/s, a multiply-add counts two
  double f32_gflops = 0, f32_best_gflops = 0;  // 1e9 f32 operations/s, an FMA counts two
};

// Takes about `seconds`, plus the time to touch the buffer. Throws Error{kNoMemory}. int8_gops is 0 on
// Isa::kGeneric.
Roofline measure_roofline(ThreadPool& pool, double seconds, Isa isa = best_isa());

// The read part alone, slice by slice, so that a benchmark can take it in turn with its own slices.
class ReadProbe {
 public:
  ReadProbe(ThreadPool& pool, Isa isa = best_isa());
  Slice measure();  // bytes/s of one slice of 32 MiB a thread
  double slice() { return measure().rate; }

 private:
  ThreadPool& pool_;
  uint64_t (*read_)(const std::byte*, size_t);
  size_t share_ = 0;
  AlignedBuffer buffer_;
  int64_t round_ = 0;
  std::atomic<uint64_t> sink_{0};
};

}  // namespace kvasir::cpu
