// The inner loops of measure_roofline, one set an ISA. Internal.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"

namespace kvasir::cpu {

struct RooflineKernels {
  uint64_t (*read)(const std::byte* data,
                   size_t bytes);  // bytes % 4096 == 0; returns something that depends on all of it
  double (*int8)(int64_t n);       // runs n rounds, returns the operations done; may be null
  double (*f32)(int64_t n);
};

RooflineKernels roofline_kernels(Isa isa);
RooflineKernels roofline_generic();
RooflineKernels roofline_avx2();
RooflineKernels roofline_avx512();
RooflineKernels roofline_neon();

}  // namespace kvasir::cpu
