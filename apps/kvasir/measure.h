// What one op costs on a backend, measured through the graph route that generates text.
#pragma once
#include <functional>
#include <string>

#include "decide/cost.h"

namespace kvasir::app {

// Everything a prediction needs: read rate and peaks, products of one row and of many with each weight type,
// attention over each cache type at each head size, and what ops take to start. `rounds` over all of it, the best of
// each counts: types are compared with each other, and a shared machine has slow minutes. `progress` gets 0..1. About
// 15 seconds a round on two cores, 25 on an H200. Throws Error{kNoDevice}.
decide::MachineTable measure_machine(const std::string& backend, int threads, int rounds,
                                     const std::function<void(double)>& progress);

}  // namespace kvasir::app
