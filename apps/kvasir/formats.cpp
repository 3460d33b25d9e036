// kvasir formats: every storage type of this build.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "console.h"
#include "engine/kv_ruler.h"
#include "formats/format.h"
#include "formats/ruler.h"
#include "generation.h"
#include "options.h"

namespace kvasir::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHeadDims[] = {64, 128, 256, 512};
constexpr int kShownHeadDim = 256;  // for figures of a head-wide type that depend on the head size

std::vector<std::string> roles(const formats::Format& format) {
  std::vector<std::string> names;
  if (format.has_role(formats::kWeights)) names.push_back("weights");
  if (format.has_role(formats::kKeys)) names.push_back("keys");
  if (format.has_role(formats::kValues)) names.push_back("values");
  return names;
}

bool for_cache(const formats::Format& format) {
  return format.has_role(formats::kKeys) || format.has_role(formats::kValues);
}

Json backends_of(const formats::Format& format) {
  const backends::Caps& caps = backend_caps();
  Json list = Json::array();
  if (std::ranges::count(caps.weight_types, format.type) || std::ranges::count(caps.kv_types, format.type))
    list.push_back(caps.name);
  return list;
}

Json ruler_json(const formats::Format& format) {
  Json rows = Json::array();
  if (!for_cache(format)) return rows;
  for (int head_dim : kHeadDims) {
    if (!format.takes(head_dim)) continue;
    const formats::Ruler r = formats::ruler(format, head_dim);
    rows.push_back({{"head_dim", head_dim},
                    {"bits_per_value", r.bits_per_value},
                    {"nmse", r.nmse},
                    {"theory", r.theory},
                    {"bits_lost", std::isnan(r.bits_lost) ? Json() : Json(r.bits_lost)}});
  }
  return rows;
}

void print_json(bool with_ruler) {
  Json list = Json::array();
  for (const formats::Format& format : formats::all())
    list.push_back({{"name", format.name},
                    {"id", uint32_t(format.type)},
                    {"bits_per_value", format.bits_per_value(kShownHeadDim)},
                    {"block", format.block},
                    {"block_bytes", format.block_bytes},
                    {"row_extra_bytes", format.row_extra},
                    {"roles", roles(format)},
                    {"backends", backends_of(format)},
                    {"ruler", with_ruler ? ruler_json(format) : Json::array()}});
  print(list.dump(2) + "\n");
}

void print_list() {
  print(fmt::format("{:<10}{:>4}{:>12}{:>8}{:>8}  {}\n", "name", "id", "bits/value", "block", "bytes",
                    "holds"));
  for (const formats::Format& format : formats::all()) {
    const std::string bits =
        format.head_wide()
            ? fmt::format("{}+{}/d", 8 * format.block_bytes / format.block, 8 * format.row_extra)
            : fmt::format("{:.4g}", format.bits_per_value(format.block));
    print(fmt::format("{:<10}{:>4}{:>12}{:>8}{:>8}  {}{}\n", format.name, uint32_t(format.type), bits,
                      format.block, format.block_bytes, fmt::join(roles(format), ", "),
                      backends_of(format).empty() ? " (codec only: no backend runs it yet)" : ""));
  }
}

void print_ruler() {
  print(fmt::format("{:<10}{:>10}{:>12}{:>12}{:>12}{:>11}\n", "name", "head size", "bits/value", "nmse",
                    "theory", "bits lost"));
  for (const formats::Format& format : formats::all()) {
    if (!for_cache(format)) continue;
    for (int head_dim : kHeadDims) {
      if (!format.takes(head_dim)) continue;
      const formats::Ruler r = formats::ruler(format, head_dim);
      print(fmt::format("{:<10}{:>10}{:>12.5g}{:>12.4g}{:>12.4g}{:>11}\n", format.name, head_dim,
                        r.bits_per_value, r.nmse, r.theory,
                        std::isnan(r.bits_lost) ? "-" : fmt::format("{:.3f}", r.bits_lost)));
    }
  }
}

// ---- the ruler on a model's own keys and values ----

std::vector<engine::KvRulerGroup> model_ruler(const Args& args, const std::shared_ptr<engine::Model>& model) {
  const std::string text = read_text(args.text("file"));
  require_utf8(text, args.text("file"));
  engine::KvRulerOptions options;
  options.n_ctx = args.integer("ctx-size");
  options.max_chunks = args.integer("chunks");
  Progress progress("reading keys and values");
  options.on_window = [&](int done, int all) { progress.update(float(done) / float(all)); };
  return engine::kv_ruler(model, prompt_tokens(*model, text), options);
}

std::string group_name(const engine::KvRulerGroup& group) {
  return fmt::format("{} of {} {} {}, head size {}", group.side == formats::kKeys ? "keys" : "values",
                     group.n_layers, group.window > 0 ? fmt::format("sliding ({})", group.window) : "global",
                     group.n_layers == 1 ? "layer" : "layers", group.head_dim);
}

void print_model_ruler(const std::vector<engine::KvRulerGroup>& groups) {
  for (const engine::KvRulerGroup& group : groups) {
    print(fmt::format("{}{}: {} vectors\n", &group == groups.data() ? "" : "\n", group_name(group),
                      group.n_rows));
    print(
        fmt::format("{:<10}{:>12}{:>12}{:>12}{:>11}\n", "name", "bits/value", "nmse", "worst", "bits lost"));
    for (const engine::KvRulerRow& row : group.rows)
      print(fmt::format("{:<10}{:>12.5g}{:>12.4g}{:>12.4g}{:>11}\n", formats::require(row.type).name,
                        row.bits_per_value, row.nmse, row.worst,
                        std::isnan(row.bits_lost) ? "-" : fmt::format("{:.3f}", row.bits_lost)));
  }
}

void print_model_ruler_json(const std::vector<engine::KvRulerGroup>& groups, const engine::Model& model) {
  Json list = Json::array();
  for (const formats::Format& format : formats::all()) {
    Json rows = Json::array();
    for (const engine::KvRulerGroup& group : groups)
      for (const engine::KvRulerRow& row : group.rows)
        if (row.type == format.type)
          rows.push_back({{"model", model.description()},
                          {"class", group.window > 0 ? "sliding" : "global"},
                          {"window", group.window},
                          {"layers", group.n_layers},
                          {"side", group.side == formats::kKeys ? "keys" : "values"},
                          {"head_dim", group.head_dim},
                          {"vectors", group.n_rows},
                          {"bits_per_value", row.bits_per_value},
                          {"nmse", row.nmse},
                          {"worst", row.worst},
                          {"bits_lost", std::isnan(row.bits_lost) ? Json() : Json(row.bits_lost)}});
    if (!rows.empty())
      list.push_back({{"name", format.name}, {"id", uint32_t(format.type)}, {"ruler", rows}});
  }
  print(list.dump(2) + "\n");
}

int formats_on_model(const Args& args) {
  if (!args.on("ruler")) fail(ErrorCode::kUsage, "-m and -f belong to --ruler; give it as well");
  if (!args.given("file"))
    fail(ErrorCode::kUsage, "--ruler -m needs a text; give -f FILE, or -f - to read standard input");
  const auto model = load_model(args);
  const auto groups = model_ruler(args, model);
  if (args.on("json"))
    print_model_ruler_json(groups, *model);
  else
    print_model_ruler(groups);
  flush_out();
  return 0;
}

int formats_list(const Args& args) {
  if (args.given("model") || args.given("file")) return formats_on_model(args);
  if (args.on("json"))
    print_json(args.on("ruler"));
  else if (args.on("ruler"))
    print_ruler();
  else
    print_list();
  flush_out();
  return 0;
}

}  // namespace

Command formats_command() {
  Command command;
  command.name = "formats";
  command.summary = "every storage type: id, bits, block, what it may hold";
  command.usage = "[options]";
  command.description =
      "Lists the types that weights, keys and values can have. docs/formats.md describes their bytes.";
  command.flags =
      join({{{.names = "--ruler",
              .help = "the error of each KV type at each head size on Gaussian values, and the bits it loses "
                      "against the best code there can be: rate - log2(1 / error) / 2, scales counted"},
             {.names = "-f, --file",
              .argument = "FILE",
              .kind = Kind::kFile,
              .group = "A model's own keys and values",
              .help = "with --ruler: measure on the keys (after rope) and values that this text leaves in "
                      "the cache of the "
                      "model (-m), each vector counted alike; - reads standard input"},
             {.names = "-c, --ctx-size",
              .argument = "N",
              .kind = Kind::kInteger,
              .fallback = "512",
              .group = "A model's own keys and values",
              .help = "tokens in a window of the text",
              .min = 4,
              .max = 16777216},
             {.names = "--chunks",
              .argument = "N",
              .kind = Kind::kInteger,
              .fallback = "4",
              .group = "A model's own keys and values",
              .help = "windows; -1: the whole text",
              .min = -1,
              .max = 16777216}},
            model_flags(),
            output_flags()});
  command.examples = {
      {"kvasir formats --json", "the list for programs"},
      {"kvasir formats --ruler", "how close each KV type comes to the limit"},
      {"kvasir formats --ruler -m gemma.gguf -f text.txt", "the same on that model's own keys and values"}};
  command.run = formats_list;
  return command;
}

}  // namespace kvasir::app
