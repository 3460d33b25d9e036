#include "machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/cpu_features.h"
#include "formats/format.h"

namespace kvasir::app {
namespace {

// The number after `name` in a file of "name number" lines, or the number alone; 0 when absent ("max" of a
// cgroup).
uint64_t field(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string key, line;
  uint64_t number = 0;
  if (name.empty()) return file >> number ? number : 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    if (words >> key >> number && key == name) return number;
  }
  return 0;
}

uint64_t memory_field(std::string_view name) { return field("/proc/meminfo", name) * 1024; }

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds all cores spent on anything but idling.
double busy_seconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return (user + nice + system + irq + soft + steal) / double(sysconf(_SC_CLK_TCK));
}

double own_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return double(time.tv_sec) + double(time.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

double load_average() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

uint64_t memory_total() { return memory_field("MemTotal:"); }

uint64_t memory_available() {
  uint64_t available = memory_field("MemAvailable:");
  // A container may have less than the machine. Cached file pages count as used there but can be taken back.
  const uint64_t limit = field("/sys/fs/cgroup/memory.max", ""),
                 used = field("/sys/fs/cgroup/memory.current", "");
  const uint64_t cached = field("/sys/fs/cgroup/memory.stat", "inactive_file");
  if (limit > 0) available = std::min(available, limit - std::min(limit, used - std::min(used, cached)));
  return available;
}

uint64_t memory_limit() {
  const uint64_t total = memory_total(), limit = field("/sys/fs/cgroup/memory.max", "");
  return limit > 0 ? std::min(total, limit) : total;
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

ForeignLoad::ForeignLoad() : busy_(busy_seconds()), own_(own_seconds()), wall_(now_seconds()) {}

double ForeignLoad::share() const {
  const double wall = now_seconds() - wall_;
  // /proc/stat counts in ticks of 10 ms, so a short stretch says little.
  if (wall < 0.05) return 0;
  const double foreign = (busy_seconds() - busy_) - (own_seconds() - own_);
  return std::clamp(foreign / (wall * double(sysconf(_SC_NPROCESSORS_ONLN))), 0.0, 1.0);
}

double kv_read_bytes(const engine::Session& session, int n_visible) {
  const graph::Graph& graph = session.model().graph();
  const engine::KvTypes& types = session.options().kv;
  double bytes = 0;
  for (const graph::Op& op : graph.ops) {
    if (op.kind != graph::OpKind::attention) continue;
    const graph::KvSpec& spec = graph.kv[size_t(op.kv)];
    const DType k = spec.window ? types.k_sliding.value_or(types.k) : types.k;
    const DType v = spec.window ? types.v_sliding.value_or(types.v) : types.v;
    const size_t row =
        formats::require(k).row_bytes(spec.head_dim) + formats::require(v).row_bytes(spec.head_dim);
    bytes +=
        double(spec.window ? std::min(n_visible, spec.window) : n_visible) * double(spec.n_kv) * double(row);
  }
  return bytes;
}

double step_read_bytes(const engine::Session& session, int n_before, int n_steps) {
  double kv = 0;
  for (int i = 0; i < n_steps; ++i) kv += kv_read_bytes(session, n_before + i + 1);
  return double(session.model().step_weight_bytes()) + kv / std::max(n_steps, 1);
}

}  // namespace kvasir::app
