#include "options.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "backends/registry/registry.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "cache_choice.h"
#include "decision_inputs.h"
#include "formats/format.h"
#include "gguf/recipe.h"
#include "graph/kv_layout.h"
#include "machine.h"

namespace kvasir::app {

namespace fs = std::filesystem;

Loudness loudness(const Args& args) {
  if (args.on("quiet")) return Loudness::kQuiet;
  return args.on("verbose") ? Loudness::kVerbose : Loudness::kNormal;
}

// Beside an installed program (which may carry the small file only), or in the source tree that it was built
// from.
std::string test_model() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = (program.parent_path() / KVASIR_RELATIVE_MODEL_DIR).lexically_normal();
  const fs::path built = KVASIR_DEFAULT_MODEL_DIR;
  for (const fs::path& folder : {installed, built})
    for (std::string_view name : {"tiny-gemma4-f16.gguf", "tiny-gemma4-q8_0.gguf"})
      if (fs::exists(folder / name, error)) return (folder / name).string();
  fail(ErrorCode::kBadFile,
       "no -m given, and no test model tiny-gemma4-f16.gguf or -q8_0.gguf in {} or {}; give -m MODEL.gguf",
       installed.string(), built.string());
}

std::string model_path(const Args& args) {
  if (args.given("model")) return args.text("model");
  const std::string path = test_model();
  note(
      "no -m given: using the test model tiny-gemma4 (15.6 M parameters, trained on old novels; a test "
      "object, not an "
      "assistant)");
  return path;
}

void require_backend(std::string_view backend) {
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.name == backend && !status.available)
      fail(ErrorCode::kNoDevice, "backend '{}': {}; --backend cpu works here (`kvasir devices` lists all)",
           backend, status.reason);
}

void require_backend(const Args& args) {
  require_backend(args.text("backend"));
  const std::string& layers = args.text("gpu-layers");
  if (layers == "auto" || layers == "0") return;
  if (layers != "all" && (layers.empty() || layers.find_first_not_of("0123456789") != layers.npos))
    fail(ErrorCode::kUsage, "-ngl {}: must be auto, all or a number of layers", layers);
  if (args.text("backend") != "cpu") return;
  fail(
      ErrorCode::kNoDevice,
      "-ngl {}: asks for layers on a GPU, but the model is to run on the cpu backend; leave -ngl out or give "
      "-ngl 0, or choose a GPU with --backend",
      layers);
}

int thread_count(const Args& args) { return args.given("threads") ? args.integer("threads") : cpu_count(); }

namespace {

// Weights are copied into the layout the kernels read; lookup tables stay in the file's mapping.
void require_weights_fit(const std::string& path) {
  const auto file = gguf::File::open(path);
  gguf::read_model_config(*file);  // what cannot run is refused for that, not for its size
  uint64_t need = 0;
  for (const gguf::TensorInfo& tensor : file->tensors())
    if (!tensor.name.starts_with("per_layer_token_embd")) need += tensor.data.size();
  const uint64_t available = memory_available();
  if (available == 0 || need <= available) return;
  fail(ErrorCode::kNoMemory,
       "{}: its weights need {} of memory, but {} is free; close other programs, or use a smaller model or "
       "one with fewer bits a weight",
       path, size_text(double(need)), size_text(double(available)));
}

}  // namespace

namespace {

using Check = std::function<void(const engine::Model&)>;

std::shared_ptr<engine::Model> load_checked(const std::string& path, int n_threads, Loudness loud,
                                            const std::string& backend, const Check& before_upload) {
  if (backend == "cpu") require_weights_fit(path);  // a device says itself what does not fit
  Progress progress("loading " + fs::path(path).filename().string());
  engine::LoadOptions options;
  options.path = path;
  options.n_threads = n_threads;
  options.backend = backend;
  options.log = make_log(loud);
  options.progress = [&](float fraction) { progress.update(fraction); };
  options.before_upload = before_upload;
  return engine::Model::load(options);
}

// A model runs on one backend whole: a part of its layers on a GPU is refused, not rounded.
void require_all_layers(const Args& args, const engine::Model& model) {
  const std::string& layers = args.text("gpu-layers");
  if (args.text("backend") == "cpu" || layers == "auto" || layers == "all") return;
  if (std::stoll(layers.substr(0, 9)) < model.config().n_layer)
    fail(ErrorCode::kRefused,
         "-ngl {}: required: all {} layers on one backend; leave -ngl out, or run on --backend cpu", layers,
         model.config().n_layer);
}

// A GPU is named where nobody chose a backend; it is not taken unasked.
void name_gpu(const Args& args) {
  if (args.given("backend") || loudness(args) == Loudness::kQuiet) return;
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.available && status.name != args.text("backend"))
      note("this runs on the {}; a device for --backend {} is here, too", args.text("backend"), status.name);
}

std::shared_ptr<engine::Model> load_checked(const Args& args, const Check& check) {
  require_backend(args);
  name_gpu(args);
  return load_checked(model_path(args), thread_count(args), loudness(args), args.text("backend"),
                      [&](const engine::Model& model) {
                        require_all_layers(args, model);
                        if (check) check(model);
                      });
}

}  // namespace

std::shared_ptr<engine::Model> load_model(const std::string& path, int n_threads, Loudness loud,
                                          const std::string& backend) {
  return load_checked(path, n_threads, loud, backend, nullptr);
}

std::shared_ptr<engine::Model> load_model(const Args& args) { return load_checked(args, nullptr); }

std::shared_ptr<engine::Model> load_model(const Args& args, engine::SessionOptions& session) {
  return load_checked(args, [&](const engine::Model& model) { session = session_options(args, model); });
}

std::string recipe_name(const gguf::File& file) {
  const gguf::Value* value = file.find("general.file_type");
  if (!value || value->is_array()) return "";
  for (const gguf::Recipe& recipe : gguf::recipes())
    if (int64_t(recipe.file_type) == value->integer()) return std::string(recipe.name);
  return "";
}

const backends::Caps& backend_caps(const std::string& backend) {
  static std::map<std::string, backends::Caps> known;
  const auto it = known.find(backend);
  return it != known.end()
             ? it->second
             : known.emplace(backend, backends::create_backend(backend, 1)->caps()).first->second;
}

std::vector<std::string> cache_type_names() {
  std::vector<std::string> names;
  for (DType type : backend_caps().kv_types) names.emplace_back(formats::require(type).name);
  return names;
}

std::string cache_types_text() { return fmt::format("{}", fmt::join(cache_type_names(), " ")); }

DType kv_type(std::string_view name, bool keys, const std::string& backend) {
  const formats::Role role = keys ? formats::kKeys : formats::kValues;
  const formats::Format* format = formats::find(name);
  if (!format)
    fail(ErrorCode::kRefused, "unknown type '{}'; a KV cache can hold: {}", name, cache_types_text());
  engine::check_kv_type(backend_caps(backend), format->type, role);
  return format->type;
}

engine::KvTypes kv_types(const Args& args) {
  engine::KvTypes types;
  const std::string& backend = args.text("backend");
  const auto named = [&](const char* key) -> std::string_view {
    return args.text(key) == "auto" ? std::string_view("q8_0") : std::string_view(args.text(key));
  };
  types.k = kv_type(named("cache-type-k"), true, backend);
  types.v = kv_type(named("cache-type-v"), false, backend);
  if (args.given("kv-swa")) {
    const auto pair = split(args.text("kv-swa"), ':');
    if (pair.size() != 2)
      fail(ErrorCode::kUsage, "--kv-swa {}: must be K:V, two storage types, for example f16:q8_0",
           args.text("kv-swa"));
    for (const std::string& name : pair)
      if (!formats::find(name))
        fail(ErrorCode::kUsage, "--kv-swa {}: no storage type '{}'; a KV cache can hold: {}",
             args.text("kv-swa"), name, cache_types_text());
    types.k_sliding = kv_type(pair[0], true, backend);
    types.v_sliding = kv_type(pair[1], false, backend);
  }
  types.tcq = tcq_table(args);
  if (types.tcq && !types.uses_tcq())
    fail(
        ErrorCode::kUsage,
        "--tcq-table {}: neither keys nor values have the type it is for; add -ctk tbq3_tcq or -ctv tbq3_tcq",
        args.text("tcq-table"));
  return types;
}

std::shared_ptr<const formats::TcqTable> tcq_table(const Args& args) {
  return args.given("tcq-table") ? formats::load_tcq_table(args.text("tcq-table")) : nullptr;
}

bool flash_attention(std::string_view word, std::string_view what, const std::string& backend) {
  const OnOff wish = parse_on_off(word, what);
  if (wish != OnOff::kAuto) return wish == OnOff::kOn;
  const decide::FlashState state = decide::decide_flash(live_row(backend, 0), decide::FlashWish::kAuto);
  if (!state.on) note("{}", state.reason);
  return state.on;
}

int micro_batch(int n_ubatch, int n_batch, std::string_view backend) {
  if (n_ubatch > 0) return std::min(n_ubatch, n_batch);
  return n_batch < decide::default_micro_batch(backend == "cpu") ? n_batch : 0;
}

void require_memory(const engine::Model& model, engine::SessionOptions& options) {
  backends::Backend& backend = model.backend();
  const bool host = backend.caps().name == "cpu";
  const uint64_t available =
      host ? memory_available() : decide::usable(backend.free_bytes(), decide::kDeviceReserve);
  const decide::ModelGeometry geometry = decide::read_geometry(model.file());
  const std::vector<graph::KvSpec> specs = engine::cache_specs(model.graph().kv, options);
  const auto need = [&](int n_ctx, int n_ubatch) {
    decide::MemoryNeed need = decide::memory_need(geometry, {}, n_ctx, n_ubatch, host);
    if (model.has_weights()) need.weights = 0;
    need.kv = graph::kv_total_bytes(specs, n_ctx, n_ubatch, options.n_seq);
    return need;
  };
  if (options.n_ubatch == 0) {
    options.n_ubatch =
        decide::fitting_micro_batch(host, host && available == 0 ? std::nullopt : std::optional(available),
                                    [&](int n_ubatch) { return need(options.n_ctx, n_ubatch); });
    if (const int most = decide::default_micro_batch(host); options.n_ubatch < most)
      note("{} rows of a prompt a step: {} do not fit beside a context of {}; prompts are slower so",
           options.n_ubatch, most, options.n_ctx);
  }
  if (host && available == 0) return;  // unknown
  const std::string problem =
      decide::context_refusal(options.n_ctx, available, host ? "memory" : backend.caps().device,
                              [&](int n_ctx) { return need(n_ctx, options.n_ubatch); });
  if (!problem.empty()) fail(ErrorCode::kNoMemory, "{}", problem);
}

engine::SessionOptions session_options(const Args& args, const engine::Model& model) {
  engine::SessionOptions options;
  const int trained = model.config().n_ctx_train;
  options.n_ctx = args.integer("ctx-size");
  if (options.n_ctx == 0)
    options.n_ctx = trained;
  else if (trained > 0 && options.n_ctx > trained)
    note("warning: -c {} is more than the {} positions this model was trained for; expect worse text",
         options.n_ctx, trained);
  options.n_batch = args.integer("batch-size");
  options.n_ubatch = args.integer("ubatch-size");
  if (options.n_ubatch > options.n_batch) {
    if (args.given("batch-size"))
      fail(ErrorCode::kUsage, "-ub {}: must not be more than -b {}; give -b {} or a smaller -ub",
           options.n_ubatch, options.n_batch, options.n_ubatch);
    options.n_batch = options.n_ubatch;
  }
  options.n_ubatch = micro_batch(options.n_ubatch, options.n_batch, model.backend().caps().name);
  options.kv = kv_types(args);
  options.kv_exact_first = args.integer("kv-exact-first");
  options.kv_exact_last = args.integer("kv-exact-last");
  options.flash_attention = flash_attention(args.text("flash-attn"), "-fa", model.backend().caps().name);
  if (types_are_automatic(args)) {
    CacheQuestion question = cache_question(args);
    question.n_ctx = args.integer("ctx-size");  // 0: what the model was trained for, or what fits
    question.n_ubatch = options.n_ubatch;
    question.flash = options.flash_attention;
    const decide::Row row = decide_cache(model, question);
    if (loudness(args) != Loudness::kQuiet) note("cache types decided: {}", row.reason);
    if (row.no_memory) fail(ErrorCode::kNoMemory, "{}", row.reason);
    options.n_ctx = row.n_ctx;
    options.kv = {row.types.k, row.types.v, row.types.k_sliding, row.types.v_sliding, options.kv.tcq};
  }
  require_memory(model, options);
  return options;
}

engine::SamplerOptions sampler_options(const Args& args) {
  engine::SamplerOptions options;
  options.temperature = float(args.number("temperature"));
  options.top_k = args.integer("top-k");
  options.top_p = float(args.number("top-p"));
  options.min_p = float(args.number("min-p"));
  options.repeat_penalty = float(args.number("repeat-penalty"));
  options.repeat_last_n = args.integer("repeat-last-n");
  const int64_t seed = args.big_integer("seed");
  options.seed = seed >= 0 ? uint64_t(seed) : std::random_device{}();
  return options;
}

std::string read_text(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (!file) fail(ErrorCode::kBadFile, "{}: cannot be opened: {}", path, std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof buffer, file)) > 0) text.append(buffer, n);
  const int error = std::ferror(file) ? errno : 0;
  if (file != stdin) std::fclose(file);
  if (error) fail(ErrorCode::kBadFile, "{}: cannot be read: {}", path, std::strerror(error));
  return text;
}

std::string prompt_text(const Args& args) {
  if (args.given("prompt") && args.given("file"))
    fail(ErrorCode::kUsage, "-p and -f are both given; a prompt comes from one of them");
  if (!args.given("prompt") && !args.given("file"))
    fail(ErrorCode::kUsage, "no prompt; give -p TEXT, -f FILE, or -f - to read standard input");
  std::string text;
  if (args.given("file"))
    text = read_text(args.text("file"));
  else
    text = args.on("no-escape") ? args.text("prompt") : resolve_escapes(args.text("prompt"));
  require_utf8(text, args.given("file") ? args.text("file") : "-p");
  return text;
}

}  // namespace kvasir::app
