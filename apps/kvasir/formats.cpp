// kvasir formats: every storage type of this build.
#include <nlohmann/json.hpp>

#include "command.h"
#include "console.h"
#include "formats/format.h"
#include "options.h"

namespace kvasir::app {
namespace {

std::vector<std::string> roles(const formats::Format& format) {
  std::vector<std::string> names;
  if (format.has_role(formats::kWeights)) names.push_back("weights");
  if (format.has_role(formats::kKeys)) names.push_back("keys");
  if (format.has_role(formats::kValues)) names.push_back("values");
  return names;
}

int formats_list(const Args& args) {
  if (args.on("json")) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const formats::Format& format : formats::all())
      list.push_back({{"name", format.name},
                      {"id", uint32_t(format.type)},
                      {"bits_per_value", format.bits_per_value()},
                      {"block", format.block},
                      {"block_bytes", format.block_bytes},
                      {"roles", roles(format)},
                      {"backends", {"cpu"}},
                      {"ruler", nlohmann::ordered_json::array()}});
    print(list.dump(2) + "\n");
  } else {
    print(fmt::format("{:<10}{:>4}{:>12}{:>8}{:>8}  {}\n", "name", "id", "bits/value", "block", "bytes",
                      "holds"));
    for (const formats::Format& format : formats::all())
      print(fmt::format("{:<10}{:>4}{:>12.4g}{:>8}{:>8}  {}\n", format.name, uint32_t(format.type),
                        format.bits_per_value(), format.block, format.block_bytes,
                        fmt::join(roles(format), ", ")));
  }
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
  command.flags = {json_flag(), help_flag()};
  command.examples = {{"kvasir formats --json", "the list for programs"}};
  command.run = formats_list;
  return command;
}

}  // namespace kvasir::app
