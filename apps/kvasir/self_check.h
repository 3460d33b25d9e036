// A first look at a kernel on this machine when no record of `kvasir verify` covers it: one attention case
// against double precision. It is no proof; it finds a kernel that is plainly wrong here.
#pragma once
#include <string>
#include <vector>

#include "backends/backend.h"

namespace kvasir::app {

struct AttentionUse {
  DType k{}, v{};
  int head_dim = 0;
  bool flash = true;
  bool operator==(const AttentionUse&) const = default;
};

// Throws Error{kFailed} when a kernel is wrong. What passed is kept in the cache folder, by kernel hash and
// device, and not run again. `line`: what was done, empty when all of it was kept from before. About 0.1 s a
// use.
void self_check(const std::string& backend, const std::string& device, int threads,
                const std::vector<AttentionUse>& uses, std::string* line);

}  // namespace kvasir::app
