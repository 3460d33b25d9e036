// kvasir synth: a model file with random weights in a published geometry.
#include "gguf/synth.h"

#include <filesystem>

#include "base/error.h"
#include "command.h"
#include "formats/format.h"
#include "options.h"

namespace kvasir::app {
namespace {

namespace fs = std::filesystem;

void require_disk_space(const std::string& path, uint64_t bytes) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  const fs::space_info space = fs::space(folder, error);
  if (error || space.available >= bytes) return;
  fail(ErrorCode::kFailed,
       "{}: needs {}, but {} is free there; choose another place, a smaller --type, or --header-only", path,
       size_text(double(bytes)), size_text(double(space.available)));
}

int synth(const Args& args) {
  const std::string &name = args.text("GEOMETRY"), &path = args.text("OUT");
  const gguf::Geometry* geometry = gguf::find_geometry(name);
  if (!geometry)
    fail(ErrorCode::kUsage, "no geometry '{}'; the known ones are: {}", name, gguf::geometry_names());
  const uint64_t bytes = gguf::synth_bytes(*geometry, args.text("type"));
  gguf::SynthOptions options;
  options.type = args.text("type");
  options.header_only = args.on("header-only");
  options.seed = uint64_t(args.big_integer("seed"));
  if (!options.header_only) require_disk_space(path, bytes);
  {
    Progress progress("writing " + path);
    options.progress = [&](float fraction) { progress.update(fraction); };
    gguf::synthesize(*geometry, path, options);
  }
  if (!args.on("quiet"))
    note("wrote {}: {} with random {} weights, {}{}", path, name, options.type, size_text(double(bytes)),
         options.header_only ? " as a hole (header only)" : "");
  return 0;
}

}  // namespace

Command synth_command() {
  // The table holds views; this text must live as long.
  static const std::string geometry_help = "one of " + gguf::geometry_names();
  static const std::string type_help = "storage type of the matrices: " + formats::names(formats::kWeights) +
                                       "; q4_k and q5_k mix types like Q4_K_M and Q5_K_M";
  Command command;
  command.name = "synth";
  command.summary = "write a model file with random weights in a published geometry";
  command.usage = "[options] GEOMETRY OUT";
  command.description =
      "For measuring speed and memory before, or without, the real model. What such a model writes means "
      "nothing.";
  command.flags = {
      {.names = "GEOMETRY",
       .argument = "GEOMETRY",
       .kind = Kind::kText,
       .group = "Arguments",
       .help = geometry_help},
      {.names = "OUT",
       .argument = "OUT",
       .kind = Kind::kFile,
       .group = "Arguments",
       .help = "the GGUF file to write"},
      {.names = "--type",
       .argument = "TYPE",
       .kind = Kind::kText,
       .fallback = "q8_0",
       .group = "Options",
       .help = type_help},
      {.names = "--header-only",
       .group = "Options",
       .help = "leave the weights as a hole in a sparse file: for info and memory, not for running"},
      {.names = "-s, --seed",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "1",
       .group = "Options",
       .help = "seed of the weights",
       .min = 0,
       .max = 4294967295.0},
      {.names = "-q, --quiet", .group = "Output", .help = "errors only on standard error"},
      help_flag()};
  command.examples = {
      {"kvasir synth gemma4-e2b e2b.gguf --type q8_0", "a file as large and as fast as Gemma 4 E2B"},
      {"kvasir synth gemma3-27b big.gguf --header-only && kvasir info -m big.gguf",
       "what a model would need"}};
  command.run = synth;
  return command;
}

}  // namespace kvasir::app
