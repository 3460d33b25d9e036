#include "backends/registry/registry.h"

#include "backends/cpu/runtime/cpu_backend.h"
#include "base/error.h"

namespace kvasir::backends {

std::vector<BackendStatus> known_backends() {
  const auto not_built = [](std::string name) {
    return BackendStatus{name, false, "this build has no " + name + " backend; use --backend cpu"};
  };
  return {{"cpu", true, ""}, not_built("cuda"), not_built("vulkan"), not_built("metal")};
}

std::unique_ptr<Backend> create_backend(std::string_view name, int n_threads, std::string_view isa_text) {
  for (const BackendStatus& status : known_backends()) {
    if (status.name != name) continue;
    if (!status.available) fail(ErrorCode::kNoDevice, "backend '{}': {}", name, status.reason);
    const std::optional<Isa> isa = isa_text.empty() ? best_isa() : find_isa(isa_text);
    if (!isa || !cpu_supports(*isa))
      fail(ErrorCode::kUsage, "instruction set '{}' is unknown or not on this CPU; it has {}", isa_text,
           isa_name(best_isa()));
    return cpu::create_backend(n_threads, *isa);
  }
  fail(ErrorCode::kUsage, "unknown backend '{}'; known: cpu, cuda, vulkan, metal", name);
}

}  // namespace kvasir::backends
