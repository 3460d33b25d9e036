// What a run keeps in memory: weights (repacked copies in place of the file's pages) + KV cache by the
// formula + 64 MiB; and `info` on a large file, which must not touch the weights at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

extern char** environ;

namespace {

const std::string kProgram = std::string(KVASIR_BINARY_DIR) + "/kvasir";
const std::string kModels = std::string(KVASIR_SOURCE_DIR) + "/models/";
constexpr int64_t kMiB = int64_t(1) << 20;

struct Outcome {
  int status = -1;
  int64_t max_resident = 0;
  double seconds = 0;
  std::string out;
};

Outcome run(const std::vector<std::string>& args) {
  const auto out_path =
      std::filesystem::temp_directory_path() / ("kvasir-memory-" + std::to_string(getpid()));
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, out_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv{const_cast<char*>(kProgram.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  Outcome outcome;
  pid_t pid = 0;
  const auto start = std::chrono::steady_clock::now();
  if (posix_spawn(&pid, kProgram.c_str(), &files, nullptr, argv.data(), environ) != 0) return outcome;
  rusage usage{};
  wait4(pid, &outcome.status, 0, &usage);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.max_resident = int64_t(usage.ru_maxrss) * 1024;
  posix_spawn_file_actions_destroy(&files);
  std::ifstream in(out_path);
  outcome.out.assign(std::istreambuf_iterator<char>(in), {});
  std::filesystem::remove(out_path);
  return outcome;
}

// max resident of `run` minus what the formula allows; negative is good.
void expect_within_formula(const std::string& model, const std::string& type, int n_ctx) {
  const Outcome info = run({"info", "-m", model, "--json"});
  ASSERT_EQ(info.status, 0);
  const auto json = nlohmann::json::parse(info.out);
  const int64_t weights = json["model"]["size_bytes"].get<int64_t>();
  const auto& at = json["kv_bytes"][type]["at"];
  ASSERT_TRUE(at.contains(std::to_string(n_ctx))) << at.dump();
  const int64_t kv = at[std::to_string(n_ctx)].get<int64_t>();
  const Outcome outcome = run({"run", "-m", model, "-p", std::string(3000, 'a') + " b", "-n", "4", "-c",
                               std::to_string(n_ctx), "-ctk", type, "-ctv", type, "-t", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_LE(outcome.max_resident, weights + kv + 64 * kMiB)
      << "weights " << weights / kMiB << " MiB, KV " << kv / kMiB << " MiB, resident "
      << outcome.max_resident / kMiB << " MiB";
  testing::Test::RecordProperty("resident_mib", int(outcome.max_resident / kMiB));
}

TEST(Memory, TinyModel) { expect_within_formula(kModels + "tiny-gemma4-q8_0.gguf", "q8_0", 8192); }

TEST(Memory, RealModelWithItsWideVocabulary) {
  const char* given = std::getenv("KVASIR_TEST_GEMMA3_270M");
  const char* home = std::getenv("HOME");
  const std::string model =
      given ? given : std::string(home ? home : "") + "/.cache/kvasir/gemma-3-270m-q4_k_m.gguf";
  if (!std::filesystem::exists(model))
    GTEST_SKIP() << "the model is not here; tools/fetch-model gemma3-270m brings it";
  expect_within_formula(model, "q8_0", 4096);
}

TEST(Info, AnswersAtOnceOnAFiveGigabyteFile) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("kvasir-e2b-" + std::to_string(getpid()) + ".gguf");
  ASSERT_EQ(run({"synth", "gemma4-e2b", path, "--header-only"}).status, 0);
  EXPECT_GT(std::filesystem::file_size(path), uint64_t(4) << 30);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = run({"info", "-m", path, "--json"});
    EXPECT_EQ(outcome.status, 0);
    best = std::min(best, outcome.seconds);
  }
  std::filesystem::remove(path);
  EXPECT_LE(best, 0.1) << "seconds";
}

}  // namespace
