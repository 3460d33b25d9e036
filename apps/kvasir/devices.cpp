// kvasir devices: what this machine has, and how fast it is.
#include <nlohmann/json.hpp>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "command.h"
#include "console.h"
#include "formats/format.h"
#include "machine.h"
#include "measure.h"
#include "options.h"
#include "store.h"

namespace kvasir::app {
namespace {

using Json = nlohmann::ordered_json;

struct Entry {
  std::string backend, name, status, reason;
  uint64_t memory_bytes = 0;
  std::optional<decide::MachineTable> measured;
};

std::string kind_of(const std::string& backend) {
  if (backend == "cuda") return "NVIDIA GPUs";
  return backend == "metal" ? "Apple GPUs" : "GPUs with a Vulkan driver";
}

std::vector<Entry> entries() {
  std::vector<Entry> rows;
  for (const backends::BackendStatus& status : backends::known_backends()) {
    Entry row{status.name,
              kind_of(status.name),
              status.reason.starts_with("not built") ? "not built" : "no device",
              status.reason,
              0,
              {}};
    if (status.available) {
      const backends::Caps& caps = backend_caps(status.name);
      row.name = caps.device;
      row.status = "ready";
      row.memory_bytes = status.name == "cpu" ? memory_total() : caps.memory_bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Takes the figures, keeps them for `kvasir decide`, and returns them.
decide::MachineTable measure(const std::string& backend, int threads, int rounds) {
  decide::MachineTable table;
  {
    Progress bar("measuring " + backend);
    table = measure_machine(backend, threads, rounds, [&](double fraction) { bar.update(fraction); });
  }
  if (const std::string path = store_machine(table); !path.empty())
    note("{}: figures kept in {}", backend, path);
  else
    note("{}: the figures were not kept: neither HOME nor XDG_CACHE_HOME is set", backend);
  return table;
}

Json entry_json(const Entry& entry, int threads) {
  Json row = {{"backend", entry.backend},
              {"name", entry.name},
              {"memory_bytes", entry.memory_bytes},
              {"status", entry.status},
              {"reason", entry.reason}};
  if (entry.backend == "cpu")
    row.update({{"isa", isa_name(best_isa())}, {"features", cpu_feature_list()}, {"threads", threads}});
  if (!entry.measured) return row;
  const decide::MachineTable& t = *entry.measured;
  if (entry.backend == "cpu") {
    row.update(
        {{"read_gb_per_s", t.read_gb_per_s}, {"int8_gops", t.int8_gops}, {"f32_gflops", t.f32_gflops}});
    row["load"] = t.load;
  } else {
    row["copy_gb_per_s"] = t.read_gb_per_s;
  }
  row["op_us"] = t.op_us;
  row["value_ns"] = t.value_ns;
  const Json whole = Json::parse(decide::to_json(t));
  row["weights"] = whole["weights"];
  row["attention"] = whole["attention"];
  return row;
}

std::string measured_text(const decide::MachineTable& t) {
  std::string text =
      t.backend == "cpu"
          ? fmt::format(
                "         reads {:.1f} GB/s, int8 {:.0f} Gop/s, f32 {:.0f} Gflop/s, an op starts in {:.1f} "
                "us "
                "(load {:.2f})\n",
                t.read_gb_per_s, t.int8_gops, t.f32_gflops, t.op_us, t.load)
          : fmt::format("         copies {:.0f} GB/s, an op starts in {:.1f} us\n", t.read_gb_per_s, t.op_us);
  text += "         weights of one row, GB/s:";
  for (const decide::WeightCost& w : t.weights)
    text += fmt::format(" {} {:.1f}", formats::require(w.type).name, w.gb_per_s);
  text += "\n         products of a prompt, Gop/s:";
  for (const decide::WeightCost& w : t.weights)
    text += fmt::format(" {} {:.0f}", formats::require(w.type).name, w.prompt_gops);
  text +=
      "\n         attention, ns a stored token of one KV head (2 and 8 query heads): generating, a row of a "
      "prompt, storing a row\n";
  for (size_t i = 0; i + 1 < t.attention.size(); i += 2) {
    const decide::AttentionCost &low = t.attention[i], &high = t.attention[i + 1];
    text += fmt::format("           {:<18} head {:>3} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.0f}\n",
                        fmt::format("{}/{}", formats::require(low.k).name, formats::require(low.v).name),
                        low.head_dim, low.ns_per_key, high.ns_per_key, low.prompt_ns, high.prompt_ns,
                        high.append_ns);
  }
  return text;
}

std::string entry_text(const Entry& entry, int threads) {
  std::string text;
  if (entry.backend == "cpu")
    text =
        fmt::format("cpu      {}\n         kernels {}, {} threads, {} memory\n         {}\n", entry.name,
                    isa_name(best_isa()), threads, size_text(double(entry.memory_bytes)), cpu_feature_list());
  else
    text = fmt::format("{:<9}{}\n", entry.backend,
                       entry.status == "ready"
                           ? fmt::format("{}, {} memory", entry.name, size_text(double(entry.memory_bytes)))
                           : entry.reason);
  return entry.measured ? text + measured_text(*entry.measured) : text;
}

int devices(const Args& args) {
  const int threads = thread_count(args);
  const std::string only = args.given("backend") ? args.text("backend") : "";
  if (!only.empty()) require_backend(only);
  Json list = Json::array();
  for (Entry& entry : entries()) {
    if (!only.empty() && entry.backend != only) continue;
    if (args.on("measure") && entry.status == "ready")
      entry.measured = measure(entry.backend, threads, args.integer("rounds"));
    if (args.on("json"))
      list.push_back(entry_json(entry, threads));
    else
      print(entry_text(entry, threads));
    flush_out();
  }
  if (args.on("json")) print(list.dump(2) + "\n");
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
      "Lists the backends. With --measure the memory read rate, the arithmetic peaks, products with every "
      "weight type and "
      "attention over every cache type are measured and kept in the cache folder; `kvasir decide` predicts "
      "from them, "
      "and `kvasir bench` says how far off the prediction was.";
  command.flags = {{.names = "--measure",
                    .group = "Measuring",
                    .help = "measure what ops cost here, for `kvasir decide` (about a minute a backend)"},
                   {.names = "--backend",
                    .argument = "NAME",
                    .kind = Kind::kChoice,
                    .group = "Measuring",
                    .help = "only this one (default every backend)",
                    .choices = "cpu cuda vulkan metal"},
                   {.names = "--rounds",
                    .argument = "N",
                    .kind = Kind::kInteger,
                    .fallback = "3",
                    .group = "Measuring",
                    .help = "rounds over all figures, the best of each counts: more for a busy machine",
                    .min = 1,
                    .max = 100},
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
