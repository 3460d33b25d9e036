// docs/decisions.md is what the evidence in the tree gives, and the HTML page is whole and needs nothing
// else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "decide/html.h"
#include "decide/inputs.h"
#include "decide/matrix.h"

namespace kvasir::decide {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

TEST(Pages, DecisionsAreThoseOfTheCommittedEvidence) {
  const fs::path root = KVASIR_SOURCE_DIR;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(root / "docs/evidence"))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  std::ranges::sort(paths);
  ASSERT_FALSE(paths.empty());
  MatrixInputs inputs;
  for (const fs::path& path : paths) add_evidence(inputs, slurp(path), path.string());
  const std::string page = slurp(root / "docs/decisions.md");
  const std::string begin = "<!-- matrix: begin -->\n", end = "<!-- matrix: end -->";
  const size_t from = page.find(begin) + begin.size(), to = page.find(end);
  ASSERT_LT(from, to);
  EXPECT_EQ(page.substr(from, to - from), matrix_markdown(inputs))
      << "docs/decisions.md is out of date: run tools/record-evidence --page";
  EXPECT_FALSE(inputs.records.empty());
}

TEST(Pages, EvidenceHoldsNoPathAndNoHostName) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  for (const auto& entry : fs::directory_iterator(fs::path(KVASIR_SOURCE_DIR) / "docs/evidence")) {
    const std::string text = slurp(entry.path());
    for (const char* part : {"/home/", "/root/", "/tmp/", "/var/", "/work"})
      EXPECT_EQ(text.find(part), std::string::npos) << entry.path() << " has " << part;
    if (std::string(host).size() > 5) {
      EXPECT_EQ(text.find(host), std::string::npos) << entry.path();
    }
  }
}

TEST(Matrix, ADiagnosticRecordIsNeverAPass) {
  Evidence record;
  record.backend = "cuda";
  record.device = "A GPU";
  record.kernel_hash = std::string(64, 'a');
  record.date = "2026-01-01T00:00:00Z";
  for (const int head_dim : {256, 512})
    record.checks.push_back({"fused", "causal", head_dim, "q8_0", "q8_0", 0.5, 1, 0.5, "q8_0/q8_0.flash.sm90",
                             Verdict::kPassed, ""});
  record.checks.push_back({"weights", "q8_0 times 1 row", 0, "", "", 0.5, 1, 0.5, "x", Verdict::kPassed, ""});
  judge(record, {"the driver is software"});
  MatrixInputs inputs;
  inputs.records = {record};
  const std::string text = matrix_markdown(inputs);
  EXPECT_NE(text.find("no: diagnostic only: the driver is software"), std::string::npos);
  EXPECT_EQ(text.find("| keep-stock | proved |"), std::string::npos) << text;
  EXPECT_NE(text.find("| keep-stock | diagnostic |"), std::string::npos) << text;
  EXPECT_EQ(text.find("| cuda | keep-stock | hardware-gated"), std::string::npos);  // it has rows of its own
  EXPECT_NE(text.find("| metal | keep-stock | hardware-gated"), std::string::npos);
  EXPECT_NE(text.find("| npu | not-applicable | not-applicable"), std::string::npos);
}

TEST(Matrix, OtherKernelsAreStaleByName) {
  Evidence record;
  record.backend = "cpu";
  record.device = "A CPU";
  record.kernel_hash = std::string(64, 'a');
  record.date = "2026-01-01T00:00:00Z";
  for (const std::string_view group : required_groups())
    record.checks.push_back({std::string(group), "one", 256, "q8_0", "q8_0", 0.5, 1, 0.5,
                             "q8_0/q8_0.flash.avx512", Verdict::kPassed, ""});
  for (const int head_dim : {128, 512})
    record.checks.push_back({"fused", "one", head_dim, "q8_0", "q8_0", 0.5, 1, 0.5, "q8_0/q8_0.flash.avx512",
                             Verdict::kPassed, ""});
  record.checks.push_back({"weights", "q8_0 times 1 row", 0, "", "", 0.5, 1, 0.5, "x", Verdict::kPassed, ""});
  judge(record, {});
  MatrixInputs inputs;
  inputs.records = {record};
  const auto has = [&](const std::map<std::string, std::string>& kernels, const char* part) {
    return matrix_markdown(inputs, kernels).find(part) != std::string::npos;
  };
  EXPECT_TRUE(has({}, "| yes |"));
  EXPECT_TRUE(has({{"cpu", std::string(64, 'a')}}, "| yes |"));
  EXPECT_TRUE(has({{"cuda", std::string(64, 'b')}}, "| yes |"));
  EXPECT_TRUE(has({{"cpu", std::string(64, 'a')}}, "| keep-stock | proved |"));
  const std::map<std::string, std::string> other = {{"cpu", std::string(64, 'b')}};
  EXPECT_TRUE(has(other, "stale: other kernels: the record is of aaaaaaaaaaaa, this program has bbbbbbbbbbbb"));
  EXPECT_FALSE(has(other, "| keep-stock | proved |"));
  EXPECT_FALSE(has(other, "| yes |"));
}

TEST(Matrix, AFileOfAnotherKindIsRefusedByName) {
  MatrixInputs inputs;
  try {
    add_evidence(inputs, "{\"kind\": \"recipe\"}", "x.json");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_NE(std::string(error.what()).find("x.json"), std::string::npos);
  }
}

Report report() {
  Report r;
  r.geometry = test::geometry("gemma4-e2b");
  r.geometry.name = "a <b> & \"c\"";
  r.source = "test";
  Device gpu;
  gpu.row = gpu.backend = "cuda";
  gpu.absent = "none here";
  r.machine = test::machine(test::cpu());
  r.rows = {decide_row(r.geometry, nullptr, {}, test::whole(test::cpu())),
            decide_row(r.geometry, nullptr, {}, {gpu, {}, {}, {}})};
  return r;
}

TEST(Html, OnePageThatNeedsNothingElse) {
  const QualityTable quality =
      test::quality({{test::both(DType::tbq4_h), 0.002}, {test::both(DType::tbq3_h), 0.02}});
  SpeedTable speed;
  speed.rows = {{"cpu", "A CPU", test::both(DType::q8_0), 0, 0, 64, 9, 9.5, false, "", ""},
                {"cpu", "A CPU", test::both(DType::q8_0), 512, 512, 0, 90, 80, false, "", ""},
                {"cpu", "A CPU", test::both(DType::q8_0), 0, 0, 4096, 8, 5, true, "", ""}};
  for (const bool measured : {false, true}) {
    const std::string page =
        measured ? report_html(report(), &quality, &speed) : report_html(report(), nullptr, nullptr);
    EXPECT_EQ(page.find("http"), std::string::npos);
    EXPECT_EQ(page.find("src="), std::string::npos);
    EXPECT_EQ(page.find("href"), std::string::npos);
    EXPECT_EQ(page.find("nan"), std::string::npos);
    EXPECT_EQ(page.find("inf,"), std::string::npos);
    EXPECT_NE(page.find("a &lt;b&gt; &amp; &quot;c&quot;"), std::string::npos);
    EXPECT_EQ(page.find("<b>"), std::string::npos);
    EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
    for (const char* tag : {"svg", "figure", "table", "tr", "td", "div", "text"})
      EXPECT_EQ(count(page, std::string("<") + tag + ">") + count(page, std::string("<") + tag + " "),
                count(page, std::string("</") + tag + ">"))
          << tag;
    EXPECT_EQ(count(page, "<svg"), measured ? 5u : 4u);
    EXPECT_NE(page.find("hardware-gated"), std::string::npos);
    EXPECT_NE(page.find("budget less weights"), std::string::npos);
  }
}

TEST(Speed, RowsSurviveJson) {
  SpeedTable table;
  table.fingerprint = "ab";
  table.geometry = "gemma4-e2b";
  SpeedRow row{"cpu", "A CPU", {DType::tbq4_ht, DType::tbq3_ht, DType::tbq4_h, DType::tbq3_h},
               0,     0,       64,
               9,     8,       true,
               "d",   "h"};
  add_row(table, row);
  row.measured = 10;
  add_row(table, row);  // the same test again
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].measured, 10);
  row.n_prompt = 512;
  row.n_ubatch = 64;
  add_row(table, row);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(to_json(speed_from_json(to_json(table), "s.json")), to_json(table));
}

}  // namespace
}  // namespace kvasir::decide
