// The shared rows of the flag table.
#include "options.h"

namespace kvasir::app {

namespace {
constexpr std::string_view kModel = "Model", kContext = "Context", kCache = "KV cache and attention",
                           kSampling = "Sampling", kPrompt = "Prompt", kOutput = "Output";
}

std::vector<Flag> model_flags() {
  return {
      {.names = "-m, --model",
       .argument = "FILE",
       .kind = Kind::kFile,
       .group = kModel,
       .help = "the model, a GGUF file; of a split model its first part (default the test model that comes "
               "with kvasir)"},
      {.names = "-t, --threads",
       .argument = "N",
       .kind = Kind::kInteger,
       .group = kModel,
       .help = "threads (default every core this process may use)",
       .min = 1,
       .max = 1024,
       .hint = "leave it out to use every core"},
      {.names = "--backend",
       .argument = "NAME",
       .kind = Kind::kChoice,
       .fallback = "cpu",
       .group = kModel,
       .help = "where the model runs",
       .choices = "cpu cuda vulkan metal",
       .hint = "`kvasir devices` lists what is here"},
      {.names = "-ngl, --gpu-layers",
       .argument = "N",
       .kind = Kind::kText,
       .fallback = "auto",
       .group = kModel,
       .help = "layers to place on a GPU: auto, all, or a number; 0 on the cpu backend"},
  };
}

std::vector<Flag> context_flags() {
  return {
      {.names = "-c, --ctx-size",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kContext,
       .help = "positions the context holds; 0: what the model was trained with",
       .min = 0,
       .max = 16777216,
       .hint = "0 takes the model's own"},
      {.names = "-b, --batch-size",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "2048",
       .group = kContext,
       .help = "tokens handed over at once",
       .min = 1,
       .max = 1048576},
      {.names = "-ub, --ubatch-size",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kContext,
       .help = "rows computed together; 0: 512 on a CPU, 2048 on a GPU (512 where no more fits)",
       .min = 0,
       .max = 8192},
  };
}

Flag tcq_table_flag(std::string_view group) {
  return {.names = "--tcq-table",
          .argument = "FILE",
          .kind = Kind::kFile,
          .group = group,
          .help = "another table for tbq3_tcq: 512 little-endian f32 levels by state"};
}

std::vector<Flag> cache_flags(std::string_view default_type) {
  std::vector<Flag> flags = {
      {.names = "-ctk, --cache-type-k",
       .argument = "TYPE",
       .kind = Kind::kKvType,
       .fallback = default_type,
       .group = kCache,
       .help = "storage type of keys"},
      {.names = "-ctv, --cache-type-v",
       .argument = "TYPE",
       .kind = Kind::kKvType,
       .fallback = default_type,
       .group = kCache,
       .help = "storage type of values"},
      {.names = "--kv-swa",
       .argument = "K:V",
       .kind = Kind::kText,
       .group = kCache,
       .help = "types for the sliding-window layers when they shall differ, e.g. f16:q8_0"},
      tcq_table_flag(kCache),
      {.names = "--kv-exact-first",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "64",
       .group = kCache,
       .help = "first tokens of the context that global layers keep exact (rounded up to 64)",
       .min = 0,
       .max = 16777216},
      {.names = "--kv-exact-last",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "0",
       .group = kCache,
       .help =
           "latest tokens that global layers keep exact besides the page being written (rounded up to 64)",
       .min = 0,
       .max = 16777216},
      {.names = "-fa, --flash-attn",
       .argument = "WHEN",
       .kind = Kind::kOnOff,
       .fallback = "auto",
       .group = kCache,
       .help = "fused attention: on, off or auto (also 1, 0)",
       .hint = "auto uses it wherever it is proved"},
  };
  if (default_type == "auto")
    for (const Flag& flag : choice_flags()) flags.push_back(flag);
  return flags;
}

std::vector<Flag> sampling_flags(std::string_view default_temperature) {
  return {
      {.names = "--temp, --temperature",
       .argument = "X",
       .kind = Kind::kNumber,
       .fallback = default_temperature,
       .group = kSampling,
       .help = "0 takes the likeliest token every time; higher is more varied",
       .min = 0,
       .max = 100},
      {.names = "--top-k",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "64",
       .group = kSampling,
       .help = "keep the N likeliest tokens; 0: all",
       .min = 0,
       .max = 16777216},
      {.names = "--top-p",
       .argument = "X",
       .kind = Kind::kNumber,
       .fallback = "0.95",
       .group = kSampling,
       .help = "keep the likeliest tokens that together reach this probability; 1: all",
       .min = 0,
       .max = 1},
      {.names = "--min-p",
       .argument = "X",
       .kind = Kind::kNumber,
       .fallback = "0",
       .group = kSampling,
       .help = "drop tokens less likely than X times the likeliest; 0: none",
       .min = 0,
       .max = 1},
      {.names = "--repeat-penalty",
       .argument = "X",
       .kind = Kind::kNumber,
       .fallback = "1",
       .group = kSampling,
       .help = "makes recent tokens less likely; 1: off",
       .min = 0.01,
       .max = 100},
      {.names = "--repeat-last-n",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "64",
       .group = kSampling,
       .help = "how many recent tokens the penalty sees",
       .min = 0,
       .max = 1048576},
      {.names = "-s, --seed",
       .argument = "N",
       .kind = Kind::kInteger,
       .fallback = "-1",
       .group = kSampling,
       .help = "the same seed gives the same text; -1: a new one each time (printed)",
       .min = -1,
       .max = 4294967295.0},
  };
}

std::vector<Flag> prompt_flags() {
  return {
      {.names = "-p, --prompt",
       .argument = "TEXT",
       .kind = Kind::kText,
       .group = kPrompt,
       .help = "the prompt"},
      {.names = "-f, --file",
       .argument = "FILE",
       .kind = Kind::kFile,
       .group = kPrompt,
       .help = "read the prompt from a file; - reads standard input"},
      {.names = "--no-escape", .group = kPrompt, .help = "take \\n, \\t, \\\\ in -p literally"},
  };
}

Flag json_flag() {
  return {.names = "--json", .group = kOutput, .help = "one JSON document on standard output"};
}
Flag help_flag() { return {.names = "-h, --help", .group = kOutput, .help = "show this text"}; }

std::vector<Flag> output_flags() {
  return {
      json_flag(),
      {.names = "-v, --verbose", .group = kOutput, .help = "more lines about what happens"},
      {.names = "-q, --quiet", .group = kOutput, .help = "warnings and errors only on standard error"},
      help_flag(),
  };
}

std::vector<Flag> join(std::initializer_list<std::vector<Flag>> parts) {
  std::vector<Flag> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace kvasir::app
