// Backends of this build by name. A backend that is not built is known here with the reason and how to build it.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace kvasir::backends {

struct BackendStatus {
  std::string name;
  bool available = false;
  std::string reason;  // why not, and what would make it so; empty when available
};

// cpu, cuda, vulkan, metal: in that order.
std::vector<BackendStatus> known_backends();

// Throws Error{kNoDevice} for a backend that is not built or has no device, Error{kUsage} for an unknown name. `isa` may name
// a slower CPU row ("" = the best).
std::unique_ptr<Backend> create_backend(std::string_view name, int n_threads, std::string_view isa = "");

// Bytes/s of a large copy in the memory of a backend's device, read and written bytes counted. Throws Error{kUsage} for the
// cpu, whose roofline is backends/cpu/roofline.h.
double copy_rate(std::string_view backend);

}  // namespace kvasir::backends
