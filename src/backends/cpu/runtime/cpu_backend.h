// The CPU backend.
#pragma once
#include <memory>

#include "backends/backend.h"
#include "base/cpu_features.h"

namespace kvasir::cpu {

// n_threads >= 1; `isa` at most best_isa(). Throws Error{kUsage}.
std::unique_ptr<backends::Backend> create_backend(int n_threads, Isa isa);

}  // namespace kvasir::cpu
