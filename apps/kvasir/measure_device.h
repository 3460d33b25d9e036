// What ops cost on a device that runs a step as a chain of launches: each has a start beside its bytes, and
// small ones are mostly start. So a figure is a line through two sizes, and a start is what a longer chain
// adds.
#pragma once
#include <functional>
#include <vector>

#include "backends/backend.h"
#include "decide/cost.h"

namespace kvasir::app {

struct AttentionJob {
  DType k, v;
  int head_dim, heads;  // of queries, a KV head
};

// Every type with itself, and types of keys alone beside q8_0 values, at the head sizes models have.
std::vector<AttentionJob> attention_jobs(const backends::Caps& caps);

// Fills the costs of `table` with the best of `rounds`. `progress` gets 0..1. Throws Error{kNoMemory} when
// the device has no GiB left.
void measure_device(backends::Backend& device, decide::MachineTable& table, int rounds,
                    const std::function<void(double)>& progress);

}  // namespace kvasir::app
