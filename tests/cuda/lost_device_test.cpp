// What a device refuses and how it is lost: the step says so, and the next load, or the next program, works. A program of its own, because
// the device is reset.
#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "backends/cuda/kernels/elementwise/elementwise.h"
#include "base/error.h"
#include "engine/tiny.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::Want;
using text::Token;

std::vector<float> logits_after(Session& s, std::span<const Token> ids) {
  std::vector<float> out;
  s.append(0, ids, Want::kLast, [&](int, std::span<const float> logits) { out.assign(logits.begin(), logits.end()); });
  return out;
}

TEST(CudaMemory, AContextThatDoesNotFitIsRefusedByName) {
  KVASIR_NEEDS_CUDA();
  engine::LoadOptions options;
  options.path = model_path("tiny-gemma4-q8_0.gguf");
  options.backend = "cuda";
  const auto model = engine::Model::load(options);
  EXPECT_GT(model->backend().free_bytes(), 0u);
  auto session = session_options(DType::f16);
  session.n_ctx = 200000000;
  try {
    Session s(model, session);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoMemory);
  }
  Session small(model, session_options(DType::f16));  // nothing was lost
  EXPECT_EQ(logits_after(small, reference().array<Token>("short.ids")).size(), size_t(model->config().n_vocab));
}

TEST(CudaLostDevice, IsSaidAndTheNextLoadWorks) {
  KVASIR_NEEDS_CUDA();
  engine::LoadOptions options;
  options.path = model_path("tiny-gemma4-q8_0.gguf");
  options.backend = "cuda";
  const auto ids = reference().array<Token>("short.ids");
  std::vector<float> before;
  {
    Session s(engine::Model::load(options), session_options(DType::tbq4_h));
    before = logits_after(s, ids);
    auto* nowhere = reinterpret_cast<float*>(16);
    cuda::half_rows({nullptr, false}, nowhere, 64, 1, reinterpret_cast<uint16_t*>(nowhere), nowhere);
    try {
      logits_after(s, ids);
      FAIL() << "a step went on without its device";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailed);
      EXPECT_NE(std::string(error.what()).find("the device was lost"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("load it again"), std::string::npos) << error.what();
    }
    EXPECT_EQ(s.size(), int(ids.size())) << "the step that failed stored nothing";
  }
  // Drivers that give no process its device back after such an error (580 does not) are named as what they are;
  // the next program has it.
  try {
    Session s(engine::Model::load(options), session_options(DType::tbq4_h));
    EXPECT_EQ(logits_after(s, ids), before);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoDevice);
    EXPECT_NE(std::string(error.what()).find("start the program again"), std::string::npos) << error.what();
    const std::string next = std::filesystem::read_symlink("/proc/self/exe").string() +
                             " --gtest_filter=CudaMemory.* | grep -q 'PASSED.* 1 test'";
    EXPECT_EQ(std::system(next.c_str()), 0) << "the next program did not work";
  }
}

}  // namespace
}  // namespace kvasir::test
#else
TEST(CudaLostDevice, NeedsABuildWithCuda) { GTEST_SKIP() << kvasir::test::no_cuda(); }
#endif
