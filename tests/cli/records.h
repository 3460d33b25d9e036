// Records of `kvasir verify` that no honest run makes.
#pragma once
#include <filesystem>

#include "backends/registry/registry.h"
#include "build_info.h"
#include "decide/evidence.h"

namespace kvasir::cli_test {

// Into `cache`: a record of this program on this machine in which one check of tbq4_h at head size 512 failed.
inline void write_wrong_record(const std::filesystem::path& cache) {
  const backends::Caps caps = backends::create_backend("cpu", 1)->caps();
  decide::Evidence e;
  e.backend = "cpu";
  e.device = caps.device;
  e.device_uuid = caps.uuid;
  e.kernel_hash = build_info::kKernelHash;
  e.date = "2026-01-01T00:00:00Z";
  for (const decide::Verdict verdict : {decide::Verdict::kPassed, decide::Verdict::kFailed})
    e.checks.push_back({"fused", verdict == decide::Verdict::kPassed ? "causal" : "window", 512, "tbq4_h", "tbq4_h",
                        verdict == decide::Verdict::kPassed ? 0.5 : 2, 1, 0.5,
                        "tbq4_h/tbq4_h.flash." + caps.isa, verdict, "planted"});
  decide::judge(e, {});
  decide::store((cache / "kvasir" / "evidence").string(), e);
}

}  // namespace kvasir::cli_test
