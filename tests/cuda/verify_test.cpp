// The gate on the device: every group of checks.
#include "verify/verify.h"

#include "cuda/fixture.h"
#include "engine/tiny.h"

namespace kvasir::test {
namespace {

TEST(CudaVerify, EveryGroupPasses) {
  KVASIR_NEEDS_CUDA();
  verify::Options options;
  options.backend = "cuda";
  options.n_threads = 4;
  options.model = model_path("tiny-gemma4-f16.gguf");
  const verify::Outcome outcome = verify::run(options);
  int passed = 0;
  for (const decide::CheckResult& check : outcome.checks) {
    passed += check.verdict == decide::Verdict::kPassed;
    EXPECT_NE(check.verdict, decide::Verdict::kFailed)
        << check.group << " " << check.name << " at " << check.head_dim << ", " << check.k << "/" << check.v
        << ": " << check.figure << " against " << check.bound << ", " << check.reason;
  }
  EXPECT_GE(passed, 1000);
  EXPECT_TRUE(outcome.doubts.empty());
}

}  // namespace
}  // namespace kvasir::test
