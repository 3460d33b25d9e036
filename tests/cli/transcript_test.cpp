// Runs the built program over every transcript in tests/cli/transcripts.
#include "cli/transcript.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/fixtures.h"
#include "cli/records.h"

namespace kvasir::cli_test {
namespace {

const std::string kModels = KVASIR_SOURCE_DIR "/models";

// One folder for the whole run: fixtures are made once.
class Workshop : public testing::Environment {
 public:
  static fs::path folder() { return fs::temp_directory_path() / ("kvasir-cli-" + std::to_string(getpid())); }
  void SetUp() override {
    for (char** entry = environ; *entry; ++entry)
      if (std::string_view(*entry).starts_with("KVASIR_"))
        inherited_.push_back(std::string(*entry).substr(0, std::string(*entry).find('=')));
    for (const std::string& name : inherited_) unsetenv(name.c_str());
    fs::create_directories(folder());
    write_fixtures(kModels, folder());
    write_wrong_record(folder() / "wrong");
  }
  void TearDown() override { fs::remove_all(folder()); }

 private:
  std::vector<std::string> inherited_;
};
[[maybe_unused]] testing::Environment* const kWorkshop = testing::AddGlobalTestEnvironment(new Workshop);

std::vector<Case> all_cases() {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(KVASIR_SOURCE_DIR "/tests/cli/transcripts"))
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Case> cases;
  for (const fs::path& path : paths)
    for (Case& one : read_transcript(path)) cases.push_back(std::move(one));
  return cases;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void check_json(const std::string& out, const std::string& rule) {
  const size_t space = std::min(rule.find(' '), rule.size());
  const auto document = nlohmann::json::parse(out, nullptr, false);
  ASSERT_FALSE(document.is_discarded()) << "stdout is not JSON:\n" << out;
  const nlohmann::json::json_pointer pointer(rule.substr(0, space));
  ASSERT_TRUE(document.contains(pointer)) << "no " << rule.substr(0, space) << " in\n" << out;
  if (space < rule.size()) {
    EXPECT_EQ(document.at(pointer), nlohmann::json::parse(rule.substr(space + 1))) << rule.substr(0, space);
  }
}

void check(const Expectation& expected, const Outcome& got) {
  const std::string& kind = expected.kind;
  const std::string& text = expected.text;
  const bool on_err = kind.ends_with("err");
  const std::string& stream = on_err ? got.err : got.out;
  if (kind == "out" || kind == "err") {
    EXPECT_TRUE(contains(stream, text)) << "std" << kind << " lacks: " << text << "\nit is:\n" << stream;
  } else if (kind == "no-out" || kind == "no-err") {
    EXPECT_FALSE(contains(stream, text)) << "std" << kind.substr(3) << " has: " << text << "\nit is:\n"
                                         << stream;
  } else if (kind == "out-is") {
    EXPECT_EQ(got.out.substr(0, got.out.find_last_not_of('\n') + 1), text);
  } else if (kind == "json") {
    check_json(got.out, text);
  } else {
    FAIL() << "the transcript has an unknown expectation: " << kind;
  }
}

class Transcript : public testing::TestWithParam<Case> {};

TEST_P(Transcript, Holds) {
  const Case& one = GetParam();
  SCOPED_TRACE("transcripts/" + one.file + ".txt:" + std::to_string(one.line) + ": " + one.command);
  const Outcome got = run_shell(one.command, Workshop::folder(), KVASIR_BINARY_DIR, kModels);
  EXPECT_EQ(got.exit_code, one.exit_code) << "stderr:\n" << got.err;
  for (const Expectation& expected : one.expectations) check(expected, got);
  // A failing program says why in one line of its own.
  if (one.exit_code != 0) {
    EXPECT_TRUE(contains(got.err, "kvasir: ")) << got.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Cli, Transcript, testing::ValuesIn(all_cases()), [](const auto& info) {
  return info.param.file + "_line_" + std::to_string(info.param.line);
});

}  // namespace
}  // namespace kvasir::cli_test
