// kvasir devices: what this machine has, and how fast it is.
#include <nlohmann/json.hpp>

#include "backends/cpu/roofline.h"
#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "command.h"
#include "machine.h"
#include "options.h"

namespace kvasir::app {
namespace {

struct Other {
  std::string backend, name, status, reason;
  uint64_t memory_bytes = 0;
  double copy_gb_s = 0;
};

// Every backend but the cpu.
std::vector<Other> other_backends(bool measure) {
  std::vector<Other> rows;
  for (const backends::BackendStatus& status : backends::known_backends()) {
    if (status.name == "cpu") continue;
    Other row{status.name, status.name == "cuda" ? "NVIDIA GPUs" : status.name == "metal" ? "Apple GPUs" : "GPUs with a Vulkan driver",
              status.reason.starts_with("not built") ? "not built" : "no device", status.reason};
    if (status.available) {
      const backends::Caps caps = backends::create_backend(status.name, 1)->caps();
      row.name = caps.device;
      row.status = "ready";
      row.memory_bytes = caps.memory_bytes;
      if (measure) row.copy_gb_s = backends::copy_rate(status.name) / 1e9;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

constexpr double kProbeSeconds = 0.5;

int devices(const Args& args) {
  const int threads = thread_count(args);
  cpu::Roofline roofline;
  if (args.on("measure")) {
    ThreadPool pool(threads);
    roofline = cpu::measure_roofline(pool, kProbeSeconds);
  }
  using Json = nlohmann::ordered_json;
  if (args.on("json")) {
    Json cpu_row = {{"backend", "cpu"},
                    {"name", cpu_name()},
                    {"memory_bytes", memory_total()},
                    {"status", "ready"},
                    {"reason", ""},
                    {"isa", isa_name(best_isa())},
                    {"features", cpu_feature_list()},
                    {"threads", threads}};
    if (args.on("measure")) {
      cpu_row["read_gb_per_s"] = roofline.read_gb_s;
      cpu_row["int8_gops"] = roofline.int8_gops;
      cpu_row["f32_gflops"] = roofline.f32_gflops;
      cpu_row["load"] = load_average();
    }
    Json list = Json::array({cpu_row});
    for (const Other& other : other_backends(args.on("measure"))) {
      list.push_back({{"backend", other.backend},
                      {"name", other.name},
                      {"memory_bytes", other.memory_bytes},
                      {"status", other.status},
                      {"reason", other.reason}});
      if (other.copy_gb_s > 0) list.back()["copy_gb_per_s"] = other.copy_gb_s;
    }
    print(list.dump(2) + "\n");
  } else {
    print(fmt::format("cpu      {}\n         kernels {}, {} threads, {} memory\n         {}\n", cpu_name(),
                      isa_name(best_isa()), threads, size_text(double(memory_total())), cpu_feature_list()));
    if (args.on("measure"))
      print(fmt::format("         reads {:.1f} GB/s, int8 {:.0f} Gop/s, f32 {:.0f} Gflop/s (load {:.2f})\n",
                        roofline.read_gb_s, roofline.int8_gops, roofline.f32_gflops, load_average()));
    for (const Other& other : other_backends(args.on("measure"))) {
      print(fmt::format("{:<9}{}\n", other.backend,
                        other.status == "ready" ? fmt::format("{}, {} memory", other.name, size_text(double(other.memory_bytes)))
                                                : other.reason));
      if (other.copy_gb_s > 0) print(fmt::format("         copies {:.0f} GB/s\n", other.copy_gb_s));
    }
  }
  flush_out();
  return 0;
}

}  // namespace

Command devices_command() {
  Command command;
  command.name = "devices";
  command.summary = "what this machine offers, and how fast it is";
  command.usage = "[options]";
  command.description =
      "Lists the backends. With --measure the memory read rate and the arithmetic peaks are measured; every "
      "share of the "
      "roofline that `kvasir bench` prints is relative to figures taken this way.";
  command.flags = {{.names = "--measure",
                    .group = "Measuring",
                    .help = "measure read bandwidth and arithmetic peaks (about 2 seconds)"},
                   {.names = "-t, --threads",
                    .argument = "N",
                    .kind = Kind::kInteger,
                    .group = "Measuring",
                    .help = "threads (default every core this process may use)",
                    .min = 1,
                    .max = 1024,
                    .hint = "leave it out to use every core"},
                   json_flag(),
                   help_flag()};
  command.examples = {{"kvasir devices --measure", "how fast this machine can be"}};
  command.run = devices;
  return command;
}

}  // namespace kvasir::app
