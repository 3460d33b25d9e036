#include "backends/registry/registry.h"

#include "backends/cpu/runtime/cpu_backend.h"
#ifdef KVASIR_HAVE_CUDA
#include "backends/cuda/runtime/cuda_backend.h"
#endif
#include "base/error.h"

namespace kvasir::backends {

namespace {

BackendStatus cuda_status() {
#ifdef KVASIR_HAVE_CUDA
  const std::string problem = cuda::device_problem();
  return {"cuda", problem.empty(), problem};
#else
  return {"cuda", false,
          "not built into this program (configure with -DKVASIR_CUDA=ON where nvcc 13 is)"};
#endif
}

std::unique_ptr<Backend> create_cuda([[maybe_unused]] std::string_view isa) {
#ifdef KVASIR_HAVE_CUDA
  return cuda::create_backend(isa);
#else
  fail(ErrorCode::kNoDevice, "backend 'cuda': {}", cuda_status().reason);
#endif
}

std::unique_ptr<Backend> create_cpu(int n_threads, std::string_view isa_text) {
  const std::optional<Isa> isa = isa_text.empty() ? best_isa() : find_isa(isa_text);
  if (!isa || !cpu_supports(*isa))
    fail(ErrorCode::kUsage, "instruction set '{}' is unknown or not on this CPU; it has {}", isa_text, isa_name(best_isa()));
  return cpu::create_backend(n_threads, *isa);
}

}  // namespace

std::vector<BackendStatus> known_backends() {
  const auto not_built = [](std::string name) {
    return BackendStatus{std::move(name), false, "not built into this program"};
  };
  return {{"cpu", true, ""}, cuda_status(), not_built("vulkan"), not_built("metal")};
}

std::unique_ptr<Backend> create_backend(std::string_view name, int n_threads, std::string_view isa_text) {
  if (name == "cpu") return create_cpu(n_threads, isa_text);
  for (const BackendStatus& status : known_backends()) {
    if (status.name != name) continue;
    if (!status.available) fail(ErrorCode::kNoDevice, "backend '{}': {}", name, status.reason);
    return create_cuda(isa_text);
  }
  fail(ErrorCode::kUsage, "unknown backend '{}'; known: cpu, cuda, vulkan, metal", name);
}

double copy_rate(std::string_view backend) {
#ifdef KVASIR_HAVE_CUDA
  if (backend == "cuda") return cuda::measure_copy_rate();
#endif
  fail(ErrorCode::kUsage, "backend '{}' has no device memory of its own to measure", backend);
}

}  // namespace kvasir::backends
