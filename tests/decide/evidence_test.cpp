// Records: what makes one count, what speaks against it, and the way to JSON and back.
#include "decide/evidence.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"

namespace kvasir::decide {
namespace {

Evidence whole_record() {
  Evidence e;
  e.backend = "cpu";
  e.device = "A CPU";
  e.kernel_hash = std::string(64, 'a');
  e.commit = "0123456789ab";
  e.date = "2026-01-01T00:00:00Z";
  e.threads = 2;
  for (const std::string_view group : required_groups())
    e.checks.push_back({std::string(group), "one", 128, "q8_0", "f16", 0.5, 1, 0.5, "q8_0/f16.flash.avx512",
                        Verdict::kPassed, ""});
  e.checks.push_back({"scores", "qjl", 64, "", "", 0, 0, 0, "", Verdict::kNotApplicable, "128 only"});
  judge(e, {});
  return e;
}

const Here kHere{std::string(64, 'a'), "A CPU", ""};

TEST(Evidence, WholeRunThatPassedIsRecordable) {
  const Evidence e = whole_record();
  EXPECT_TRUE(e.recordable) << e.reason;
  EXPECT_EQ(e.passed(), 8);
  EXPECT_EQ(e.skipped(), 1);
  EXPECT_TRUE(doubts(e, kHere).empty());
}

TEST(Evidence, AnythingLessIsDiagnosticWithItsReason) {
  Evidence e = whole_record();
  judge(e, {"the CPU is emulated by QEMU"});
  EXPECT_FALSE(e.recordable);
  EXPECT_NE(e.reason.find("QEMU"), std::string::npos);

  e = whole_record();
  e.checks[2].verdict = Verdict::kFailed;
  judge(e, {});
  EXPECT_FALSE(e.recordable);
  EXPECT_NE(e.reason.find("1 check failed"), std::string::npos);

  e = whole_record();
  e.checks.erase(e.checks.begin() + 3);
  judge(e, {});
  EXPECT_EQ(e.reason, "nothing passed in: fused");

  e = whole_record();
  e.device.clear();
  judge(e, {});
  EXPECT_FALSE(e.recordable);
}

TEST(Evidence, JsonRoundTrip) {
  Evidence e = whole_record();
  e.checks[1].reason = "a \"quoted\" reason";
  const Evidence back = from_json(to_json(e), "x.json");
  EXPECT_EQ(to_json(back), to_json(e));
  EXPECT_EQ(to_json(from_json("[" + to_json(e) + "]", "x.json")), to_json(e));
}

TEST(Evidence, DoubtsNameWhatIsWrong) {
  const auto first = [](const std::function<void(Evidence&)>& spoil, const Here& here = kHere) {
    Evidence e = whole_record();
    spoil(e);
    const auto found = doubts(e, here);
    return found.empty() ? std::string("none") : found[0];
  };
  EXPECT_NE(first([](Evidence&) {}, {std::string(64, 'b'), "A CPU", ""}).find("other kernels"),
            std::string::npos);
  EXPECT_NE(first([](Evidence&) {}, {std::string(64, 'a'), "B", ""}).find("another device"),
            std::string::npos);
  EXPECT_NE(first([](Evidence& e) { e.checks[0].figure = NAN; }).find("not a number"), std::string::npos);
  EXPECT_NE(first([](Evidence& e) { e.checks[0].max_diff = INFINITY; }).find("not a number"),
            std::string::npos);
  EXPECT_NE(first([](Evidence& e) { e.checks[0].figure = 2; }).find("over its bound"), std::string::npos);
  EXPECT_NE(first([](Evidence& e) { e.checks.push_back(e.checks[0]); }).find("same check twice"),
            std::string::npos);
  EXPECT_NE(first([](Evidence& e) { e.checks.erase(e.checks.begin()); }).find("called recordable"),
            std::string::npos);
  EXPECT_NE(first([](Evidence& e) { judge(e, {"a part"}); }).find("diagnostic only: a part"),
            std::string::npos);
}

std::string error_of(const std::string& text) {
  try {
    from_json(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    return error.what();
  }
  return "no error";
}

TEST(Evidence, BadRecordsAreRefusedByField) {
  EXPECT_NE(error_of("not json").find("x.json: is not a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{}").find("field 'schema' is missing"), std::string::npos);
  std::string text = to_json(whole_record());
  const auto swap = [&](std::string from, std::string to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error_of(changed);
  };
  EXPECT_NE(swap("\"schema\": 1", "\"schema\": 9").find("'schema' is 9"), std::string::npos);
  EXPECT_NE(swap("\"threads\": 2", "\"threads\": \"two\"").find("'threads' is not a whole number"),
            std::string::npos);
  EXPECT_NE(swap("\"passed\": 8", "\"passed\": 80").find("'passed' is 80, but 8"), std::string::npos);
  EXPECT_NE(swap("\"verdict\": \"passed\"", "\"verdict\": \"fine\"").find("checks[0]"), std::string::npos);
}

TEST(Evidence, StoreListsAndForgets) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("kvasir-evidence-" + std::to_string(getpid()))).string();
  EXPECT_TRUE(stored_records(folder).empty());
  Evidence e = whole_record();
  const std::string path = store(folder, e);
  ASSERT_FALSE(path.empty());
  EXPECT_EQ(to_json(load_record(path)), to_json(e));
  // A record of less worth does not replace it; one of other kernels lies beside it.
  Evidence diagnostic = e;
  judge(diagnostic, {"a reason"});
  EXPECT_EQ(store(folder, diagnostic), "");
  diagnostic.kernel_hash = std::string(64, 'c');
  EXPECT_NE(store(folder, diagnostic), "");
  std::ofstream(folder + "/cuda-broken.json") << "{";
  const auto list = stored_records(folder);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(
      std::count_if(list.begin(), list.end(), [](const StoredRecord& r) { return r.record.has_value(); }), 2);
  EXPECT_EQ(forget(folder, "cuda"), 1);
  EXPECT_EQ(forget(folder, ""), 2);
  EXPECT_TRUE(stored_records(folder).empty());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvasir::decide
