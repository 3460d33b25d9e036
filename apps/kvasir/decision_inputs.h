// The live machine as inputs of a decision.
#pragma once
#include <string>
#include <vector>

#include "decide/decision.h"

namespace kvasir::app {

// One entry a row of decide::row_names(). `threads`: whose measured table counts. `all_records`: also look
// for records of other devices to show beside gated rows (reads every stored file).
std::vector<decide::RowInputs> row_inputs(int threads, bool all_records);
// The row of a backend that is here, with its own record only.
decide::RowInputs live_row(const std::string& backend, int threads);

// Name a decision row has for a backend on this machine ("vulkan-mali" on a Mali GPU).
decide::Here here_of(const std::string& backend);

}  // namespace kvasir::app
