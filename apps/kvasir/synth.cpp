// kvasir synth: a model file with random weights in a published geometry.
#include "gguf/synth.h"

#include "base/error.h"
#include "command.h"
#include "console.h"
#include "options.h"

namespace kvasir::app {
namespace {

int synth(const Args& args) {
  const std::string& name = args.text("geometry");
  const gguf::Geometry* geometry = gguf::find_geometry(name);
  if (!geometry) fail(ErrorCode::kUsage, "unknown geometry '{}'; known: {}", name, gguf::geometry_names());
  gguf::SynthOptions options;
  options.type = args.text("type");
  options.header_only = args.on("header-only");
  options.seed = uint64_t(args.big_integer("seed"));
  if (geometry->n_expert > 0 && !options.header_only)
    fail(ErrorCode::kRefused,
         "{}: required: mixture of experts; supported: dense geometries, or --header-only; missing: expert kernels to run it",
         name);
  const std::string& out = args.text("out");
  Progress progress("writing " + out);
  options.progress = [&](float done) { progress.update(done); };
  gguf::synthesize(*geometry, out, options);
  progress.clear();
  print(fmt::format("{}: {} of random {} weights{}\n", out, size_text(double(gguf::synth_bytes(*geometry, options.type))),
                    options.type, options.header_only ? " (header only: the weights are a hole)" : ""));
  flush_out();
  return 0;
}

}  // namespace

Command synth_command() {
  Command command;
  command.name = "synth";
  command.summary = "write a model file with random weights in a published geometry";
  command.usage = "GEOMETRY OUT [options]";
  command.description =
      "For measuring speed and memory without the real weights: right shapes, types and keys; the text it makes means nothing. "
      "Geometries: gemma4-e2b, gemma4-e4b, gemma4-12b, gemma4-26b-a4b (header only), gemma4-31b, gemma3-270m, gemma3-27b, tiny.";
  command.flags = {{.names = "geometry", .argument = "GEOMETRY", .kind = Kind::kText, .help = "which published geometry"},
                   {.names = "out", .argument = "OUT", .kind = Kind::kFile, .help = "the file to write"},
                   {.names = "--type",
                    .argument = "T",
                    .kind = Kind::kText,
                    .fallback = "q8_0",
                    .group = "Weights",
                    .help = "storage type of the matrices; q4_k and q5_k follow the mixes of Q4_K_M and Q5_K_M"},
                   {.names = "--header-only",
                    .group = "Weights",
                    .help = "write keys and shapes, leave the weights a hole (info and decide need no more)"},
                   {.names = "--seed",
                    .argument = "N",
                    .kind = Kind::kInteger,
                    .fallback = "1",
                    .group = "Weights",
                    .help = "seed of the random weights",
                    .min = 0,
                    .max = 1e15},
                   help_flag()};
  command.examples = {{"kvasir synth gemma4-e2b e2b.gguf --type q8_0", "4.9 GB, to measure with"},
                      {"kvasir synth gemma4-31b 31b.gguf --header-only", "to plan with"}};
  command.run = synth;
  return command;
}

}  // namespace kvasir::app
