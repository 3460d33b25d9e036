#include "store.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "console.h"
#include "version.h"

namespace kvasir::app {

namespace fs = std::filesystem;

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return (fs::path(cache) / "kvasir").string();
  const char* home = std::getenv("HOME");
  return home && *home ? (fs::path(home) / ".cache" / "kvasir").string() : "";
}

std::string evidence_folder() {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : (fs::path(folder) / "evidence").string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) fail(ErrorCode::kBadFile, "{}: cannot be read", path);
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kFailed, "{}: cannot be made: {}", folder.string(), error.message());
  // Another process may write the same file: each has its own beside it, and the last rename wins whole.
  const std::string fresh = path + "." + std::to_string(getpid()) + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) fs::rename(fresh, path, error);
  if (!file || error) {
    std::error_code ignored;
    fs::remove(fresh, ignored);
    fail(ErrorCode::kFailed, "{}: cannot be written", path);
  }
}

namespace {

std::string path_in(const char* kind, const std::string& name) {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : (fs::path(folder) / kind / name).string();
}

// What `parse` makes of a stored file.
template <class T, class Parse>
std::optional<T> stored(const std::string& path, const Parse& parse) {
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return std::nullopt;
  try {
    return parse(read_file(path), path);
  } catch (const Error& fault) {
    note("warning: {}; it counts as absent", fault.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<decide::MachineTable> stored_machine(const std::string& backend, const std::string& device,
                                                   int threads) {
  auto table = stored<decide::MachineTable>(
      path_in("machine", decide::machine_name(backend, device, threads)), decide::machine_from_json);
  if (table && table->kernel_hash != kernel_hash(backend)) table.reset();  // figures of other kernels
  return table;
}

std::optional<decide::QualityTable> stored_quality(const std::string& fingerprint) {
  if (fingerprint.empty()) return std::nullopt;
  return stored<decide::QualityTable>(path_in("quality", fingerprint + ".json"), decide::quality_from_json);
}

std::optional<decide::QualityTable> current_quality(const std::string& fingerprint) {
  auto table = stored_quality(fingerprint);
  if (table)
    std::erase_if(table->rows, [](const decide::QualityRow& row) {
      return row.kernel_hash != kernel_hash() && row.kernel_hash != kernel_hash("cuda");
    });
  return table;
}

std::optional<decide::SpeedTable> stored_speed(const std::string& fingerprint) {
  if (fingerprint.empty()) return std::nullopt;
  return stored<decide::SpeedTable>(path_in("speed", fingerprint + ".json"), decide::speed_from_json);
}

std::string store_speed(const decide::SpeedTable& t) {
  const std::string path = path_in("speed", t.fingerprint + ".json");
  if (!path.empty()) write_file(path, decide::to_json(t) + "\n");
  return path;
}

std::string store_machine(const decide::MachineTable& t) {
  const std::string path = path_in("machine", decide::machine_name(t.backend, t.device, t.threads));
  if (!path.empty()) write_file(path, decide::to_json(t) + "\n");
  return path;
}

std::string store_quality(const decide::QualityTable& t) {
  const std::string path = path_in("quality", t.fingerprint + ".json");
  if (!path.empty()) write_file(path, decide::to_json(t) + "\n");
  return path;
}

std::optional<decide::Evidence> stored_record(const std::string& backend, const decide::Here& here,
                                              const std::string& tcq_table) {
  decide::Evidence key;
  key.backend = backend;
  key.kernel_hash = here.kernel_hash;
  key.device = here.device;
  key.device_uuid = here.device_uuid;
  key.tcq_table = tcq_table;
  return stored<decide::Evidence>(path_in("evidence", decide::record_name(key)), decide::from_json);
}

}  // namespace kvasir::app
