// Evidence records: what `kvasir verify` found on one device. Plain data, its JSON, the rules for trusting
// one, and a store in a folder that the caller names. A record carries no path, host name or serial number.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::decide {

inline constexpr int kEvidenceSchema = 1;

enum class Verdict { kPassed, kFailed, kNotApplicable };
std::string_view verdict_name(Verdict verdict);  // "passed", "failed", "n/a"

struct CheckResult {
  std::string group;
  std::string name;
  int head_dim = 0;              // 0: does not depend on one
  std::string k, v;              // storage types; empty where there are none
  double figure = 0, bound = 0;  // passed means figure <= bound
  double max_diff = 0;           // largest |difference| seen
  std::string variant;           // the kernel that ran
  Verdict verdict = Verdict::kFailed;
  std::string reason;  // why it failed or does not apply; empty when passed
};

struct Evidence {
  int schema = kEvidenceSchema;
  std::string backend;      // "cpu"
  std::string device;       // what the device calls itself
  std::string device_uuid;  // which device exactly (backends::Caps)
  std::string driver, isa;
  std::string commit, kernel_hash, binary_sha256, model_sha256;
  std::string compiler, flags;
  std::string tcq_table;  // SHA-256 of the table of tbq3_tcq; empty: Kvasir's own
  std::string date;  // UTC, "2026-11-29T20:46:00Z"
  int threads = 0;
  double load_average = 0;
  bool recordable = false;
  std::string reason;  // why it is diagnostic only; empty when recordable
  double seconds = 0;
  std::vector<CheckResult> checks;

  int count(Verdict verdict) const;
  int passed() const { return count(Verdict::kPassed); }
  int failed() const { return count(Verdict::kFailed); }
  int skipped() const { return count(Verdict::kNotApplicable); }
};

// The groups a recordable run must hold, in order.
const std::vector<std::string_view>& required_groups();
// Sets recordable and reason. `doubts`: what the caller knows against it (an emulator, a part of the groups).
void judge(Evidence& evidence, const std::vector<std::string>& doubts);

std::string to_json(const Evidence& evidence, int indent = 2);
// Throws Error{kBadFile} "NAME: field ...: what is wrong".
Evidence from_json(std::string_view text, std::string_view name);

// What speaks against trusting a record on a device with these kernels; empty: it is valid there. Also finds
// a record that contradicts itself (a NaN figure, a verdict that its figure denies, the same check twice).
struct Here {
  std::string kernel_hash, device, device_uuid;
};
std::vector<std::string> doubts(const Evidence& record, const Here& here);

// One file a backend, device, kernel hash and table.
std::string record_name(const Evidence& evidence);
// Makes `folder` when needed; replaces the record of the same key unless that one is recordable and this is
// not. Returns the path, or empty when the older one was kept. Throws Error{kFailed} when it cannot be
// written.
std::string store(const std::string& folder, const Evidence& evidence);
struct StoredRecord {
  std::string path;
  std::optional<Evidence> record;
  std::string fault;  // why it cannot be read
};
// In order of file name; none when the folder is missing.
std::vector<StoredRecord> stored_records(const std::string& folder);
Evidence load_record(const std::string& path);
// Removes every record of `backend` (empty: all); returns how many.
int forget(const std::string& folder, std::string_view backend);

}  // namespace kvasir::decide
