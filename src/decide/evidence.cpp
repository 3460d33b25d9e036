#include "decide/evidence.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "decide/json_reader.h"

namespace kvasir::decide {

using Json = nlohmann::ordered_json;

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kNotApplicable:
      return "n/a";
  }
  return "failed";
}

int Evidence::count(Verdict verdict) const {
  return int(std::ranges::count(checks, verdict, &CheckResult::verdict));
}

const std::vector<std::string_view>& required_groups() {
  static const std::vector<std::string_view> groups = {"reference", "scores",   "write",      "fused",
                                                       "fold",      "dispatch", "end_to_end", "weights"};
  return groups;
}

void judge(Evidence& evidence, const std::vector<std::string>& against) {
  std::string reason;
  const auto add = [&](const std::string& what) { reason += (reason.empty() ? "" : "; ") + what; };
  for (const std::string& doubt : against) add(doubt);
  std::set<std::string_view> proved;
  for (const CheckResult& check : evidence.checks)
    if (check.verdict == Verdict::kPassed) proved.insert(check.group);
  std::string missing;
  for (const std::string_view group : required_groups())
    if (!proved.count(group)) missing += (missing.empty() ? "" : " ") + std::string(group);
  if (!missing.empty()) add("nothing passed in: " + missing);
  if (const int n = evidence.failed()) add(fmt::format("{} check{} failed", n, n == 1 ? "" : "s"));
  if (evidence.device.empty()) add("the device is unknown");
  if (evidence.kernel_hash.size() != 64) add("the kernels' hash is unknown");
  evidence.reason = reason;
  evidence.recordable = reason.empty();
}

namespace {

// JSON has no NaN or infinity: a number that is one becomes null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json check_json(const CheckResult& check) {
  Json json = {{"group", check.group},
               {"name", check.name},
               {"head_dim", check.head_dim},
               {"k", check.k},
               {"v", check.v},
               {"figure", number(check.figure)},
               {"bound", number(check.bound)},
               {"max_diff", number(check.max_diff)},
               {"variant", check.variant},
               {"verdict", verdict_name(check.verdict)}};
  if (!check.reason.empty()) json["reason"] = check.reason;
  return json;
}

CheckResult read_check(const nlohmann::json& json, const std::string& where) {
  const JsonReader r(json, where);
  CheckResult check;
  check.group = r.text("group");
  check.name = r.text("name");
  check.head_dim = r.whole("head_dim");
  check.k = r.text("k");
  check.v = r.text("v");
  check.figure = r.number("figure");
  check.bound = r.number("bound");
  check.max_diff = r.number("max_diff");
  check.variant = r.text("variant");
  if (json.contains("reason")) check.reason = r.text("reason");
  const std::string verdict = r.text("verdict");
  for (const Verdict v : {Verdict::kPassed, Verdict::kFailed, Verdict::kNotApplicable})
    if (verdict == verdict_name(v)) {
      check.verdict = v;
      return check;
    }
  fail(ErrorCode::kBadFile, "{}: field 'verdict' is '{}', none of passed, failed, n/a", where, verdict);
}

}  // namespace

std::string to_json(const Evidence& e, int indent) {
  Json json = {{"schema", e.schema},
               {"backend", e.backend},
               {"device", e.device},
               {"device_uuid", e.device_uuid},
               {"driver", e.driver},
               {"isa", e.isa},
               {"commit", e.commit},
               {"kernel_hash", e.kernel_hash},
               {"binary_sha256", e.binary_sha256},
               {"model_sha256", e.model_sha256},
               {"compiler", e.compiler},
               {"flags", e.flags},
               {"date", e.date},
               {"threads", e.threads},
               {"load_average", e.load_average},
               {"recordable", e.recordable},
               {"reason", e.reason},
               {"passed", e.passed()},
               {"failed", e.failed()},
               {"skipped", e.skipped()},
               {"seconds", e.seconds},
               {"checks", Json::array()}};
  if (!e.tcq_table.empty()) json["tcq_table"] = e.tcq_table;
  for (const CheckResult& check : e.checks) json["checks"].push_back(check_json(check));
  return json.dump(indent);
}

Evidence from_json(std::string_view text, std::string_view name) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_array() && json.size() == 1)
    json = nlohmann::json(json[0]);  // what --json of one backend prints
  if (json.is_discarded() || !json.is_object())
    fail(ErrorCode::kBadFile, "{}: is not a JSON object; a record is one element of `kvasir verify --json`",
         name);
  const JsonReader r(json, std::string(name));
  Evidence e;
  e.schema = r.whole("schema");
  if (e.schema != kEvidenceSchema)
    fail(ErrorCode::kBadFile, "{}: field 'schema' is {}; this program reads {}", name, e.schema,
         kEvidenceSchema);
  e.backend = r.text("backend");
  e.device = r.text("device");
  e.device_uuid = r.text("device_uuid");
  e.driver = r.text("driver");
  e.isa = r.text("isa");
  e.commit = r.text("commit");
  e.kernel_hash = r.text("kernel_hash");
  e.binary_sha256 = r.text("binary_sha256");
  e.model_sha256 = r.text("model_sha256");
  e.compiler = r.text("compiler");
  e.flags = r.text("flags");
  if (json.contains("tcq_table")) e.tcq_table = r.text("tcq_table");
  e.date = r.text("date");
  e.threads = r.whole("threads");
  e.load_average = r.number("load_average");
  e.recordable = r.flag("recordable");
  e.reason = r.text("reason");
  e.seconds = r.number("seconds");
  const auto& checks = r.at("checks");
  if (!checks.is_array()) fail(ErrorCode::kBadFile, "{}: field 'checks' is not a list", name);
  for (size_t i = 0; i < checks.size(); ++i)
    e.checks.push_back(read_check(checks[i], fmt::format("{}: checks[{}]", name, i)));
  const std::tuple<const char*, int> counts[] = {
      {"passed", e.passed()}, {"failed", e.failed()}, {"skipped", e.skipped()}};
  for (const auto& [key, n] : counts)
    if (r.integer(key) != n)
      fail(ErrorCode::kBadFile, "{}: field '{}' is {}, but {} checks say so", name, key, r.integer(key), n);
  return e;
}

std::vector<std::string> doubts(const Evidence& record, const Here& here) {
  std::vector<std::string> found;
  if (record.kernel_hash != here.kernel_hash)
    found.push_back("other kernels: the record is of " + record.kernel_hash.substr(0, 12) +
                    ", this program has " + here.kernel_hash.substr(0, 12));
  if (record.device != here.device || record.device_uuid != here.device_uuid)
    found.push_back("another device: the record is of '" + record.device + "', this is '" + here.device +
                    "'");
  std::set<std::tuple<std::string, std::string, int, std::string, std::string>> seen;
  for (const CheckResult& check : record.checks) {
    const std::string what =
        fmt::format("{} {}{}", check.group, check.name,
                    check.head_dim ? fmt::format(" at head size {}", check.head_dim) : "");
    if (!seen.emplace(check.group, check.name, check.head_dim, check.k, check.v).second)
      found.push_back("the same check twice: " + what);
    if (check.verdict != Verdict::kPassed) continue;
    if (!std::isfinite(check.figure) || !std::isfinite(check.bound) || !std::isfinite(check.max_diff))
      found.push_back("a figure that is not a number: " + what);
    else if (!(check.figure <= check.bound))
      found.push_back(fmt::format("{} is called passed with {:.3g} over its bound {:.3g}", what, check.figure,
                                  check.bound));
  }
  Evidence again = record;
  judge(again, {});
  if (record.recordable && !again.recordable)
    found.push_back("it is called recordable, but " + again.reason);
  else if (!record.recordable)
    found.push_back("diagnostic only: " + record.reason);
  return found;
}

}  // namespace kvasir::decide
