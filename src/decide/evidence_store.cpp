// Records as files of one folder.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "base/error.h"
#include "base/sha256.h"
#include "decide/evidence.h"

namespace kvasir::decide {

namespace fs = std::filesystem;

std::string record_name(const Evidence& e) {
  std::string key = e.kernel_hash + "\n" + e.device + "\n" + e.device_uuid + "\n";
  if (!e.tcq_table.empty()) key += e.tcq_table + "\n";
  return e.backend + "-" + sha256_hex(std::as_bytes(std::span(key))).substr(0, 16) + ".json";
}

Evidence load_record(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    fail(ErrorCode::kBadFile, "{}: {}", path, fs::exists(path, error) ? "is not a file" : "no such file");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorCode::kBadFile, "{}: cannot be read", path);
  return from_json(text, path);
}

std::string store(const std::string& folder, const Evidence& evidence) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kFailed, "{}: cannot be made: {}", folder, error.message());
  const fs::path path = fs::path(folder) / record_name(evidence);
  if (!evidence.recordable && fs::exists(path, error)) {
    try {
      if (load_record(path.string()).recordable) return "";
    } catch (const Error&) {
      // What cannot be read proves nothing.
    }
  }
  // Beside it first: a reader never sees half a record.
  const fs::path fresh = path.string() + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    file << to_json(evidence) << "\n";
    file.close();
    if (!file) fail(ErrorCode::kFailed, "{}: cannot be written", fresh.string());
  }
  fs::rename(fresh, path, error);
  if (error) fail(ErrorCode::kFailed, "{}: cannot be written: {}", path.string(), error.message());
  return path.string();
}

std::vector<StoredRecord> stored_records(const std::string& folder) {
  std::vector<StoredRecord> records;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json") continue;
    StoredRecord stored{entry.path().string(), {}, ""};
    try {
      stored.record = load_record(stored.path);
    } catch (const Error& fault) {
      stored.fault = fault.what();
    }
    records.push_back(std::move(stored));
  }
  std::ranges::sort(records, {}, &StoredRecord::path);
  return records;
}

int forget(const std::string& folder, std::string_view backend) {
  int n = 0;
  for (const StoredRecord& stored : stored_records(folder)) {
    const std::string name = fs::path(stored.path).filename().string();
    if (!backend.empty() && !name.starts_with(std::string(backend) + "-")) continue;
    std::error_code error;
    if (fs::remove(stored.path, error)) ++n;
    if (error) fail(ErrorCode::kFailed, "{}: cannot be removed: {}", stored.path, error.message());
  }
  return n;
}

}  // namespace kvasir::decide
