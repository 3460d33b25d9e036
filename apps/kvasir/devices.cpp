// kvasir devices: what this machine has, and how fast it is.
#include <array>
#include <nlohmann/json.hpp>

#include "backends/cpu/roofline.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "command.h"
#include "machine.h"
#include "options.h"

namespace kvasir::app {
namespace {

struct Absent {
  std::string_view backend, name, reason;
};
constexpr std::array<Absent, 3> kAbsent{{
    {"cuda", "NVIDIA GPUs", "not in this build: it has no CUDA backend yet"},
    {"vulkan", "GPUs with a Vulkan driver", "not in this build: it has no Vulkan backend yet"},
    {"metal", "Apple GPUs", "not in this build: it has no Metal backend yet"},
}};

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
    for (const Absent& absent : kAbsent)
      list.push_back({{"backend", absent.backend},
                      {"name", absent.name},
                      {"memory_bytes", 0},
                      {"status", "not built"},
                      {"reason", absent.reason}});
    print(list.dump(2) + "\n");
  } else {
    print(fmt::format("cpu      {}\n         kernels {}, {} threads, {} memory\n         {}\n", cpu_name(),
                      isa_name(best_isa()), threads, size_text(double(memory_total())), cpu_feature_list()));
    if (args.on("measure"))
      print(fmt::format("         reads {:.1f} GB/s, int8 {:.0f} Gop/s, f32 {:.0f} Gflop/s (load {:.2f})\n",
                        roofline.read_gb_s, roofline.int8_gops, roofline.f32_gflops, load_average()));
    for (const Absent& absent : kAbsent) print(fmt::format("{:<9}{}\n", absent.backend, absent.reason));
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
