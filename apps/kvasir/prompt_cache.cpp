#include "prompt_cache.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "cache_choice.h"
#include "engine/state_io.h"
#include "formats/format.h"

namespace kvasir::app {

std::vector<Flag> prompt_cache_flags() {
  constexpr std::string_view kGroup = "Prompt";
  return {
      {.names = "--prompt-cache",
       .argument = "FILE",
       .kind = Kind::kFile,
       .group = kGroup,
       .help = "keep the state after the prompt in FILE and start from it: only what differs from it is "
               "computed. Without -p and -f the prompt is what FILE holds"},
      {.names = "--prompt-cache-all",
       .group = kGroup,
       .help = "with --prompt-cache: keep the generated text as well"},
      {.names = "--prompt-cache-ro",
       .group = kGroup,
       .help = "with --prompt-cache: start from FILE but never write it"},
  };
}

PromptCache::PromptCache(const Args& args)
    : all_(args.on("prompt-cache-all")), read_only_(args.on("prompt-cache-ro")) {
  if (!args.given("prompt-cache")) {
    if (all_ || read_only_)
      fail(ErrorCode::kUsage, "--prompt-cache-{} needs --prompt-cache FILE", all_ ? "all" : "ro");
    return;
  }
  path_ = args.text("prompt-cache");
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  there_ = !error && size > 0;  // an empty file (mktemp) is a place to write
  if (!read_only_) AtomicFile probe(path_);
}

void PromptCache::choose_types(const Args& args, const engine::Model& model, engine::SessionOptions& options,
                               bool quiet) const {
  if (!there_ || !types_are_automatic(args)) return;
  const engine::SessionOptions decided = options;
  engine::take_state_types(model, path_, options);
  if (args.given("kv-exact-first")) options.kv_exact_first = decided.kv_exact_first;
  if (args.given("kv-exact-last")) options.kv_exact_last = decided.kv_exact_last;
  options.n_ubatch = micro_batch(args.integer("ubatch-size"), options.n_batch, model.backend().caps().name);
  require_memory(model, options);
  const bool other = options.kv.k != decided.kv.k || options.kv.v != decided.kv.v ||
                     options.kv.k_sliding != decided.kv.k_sliding ||
                     options.kv.v_sliding != decided.kv.v_sliding;
  if (other && !quiet)
    note("prompt cache {}: keys {}, values {}, taken as they are (-ctk and -ctv ask for others)", path_,
         formats::require(options.kv.k).name, formats::require(options.kv.v).name);
}

void PromptCache::load(engine::Session& session, bool quiet) {
  if (path_.empty()) return;
  if (there_) engine::load_state_file(session, 0, path_);
  if (!there_ && !quiet)
    note("prompt cache {}: not there{}", path_, read_only_ ? "" : " yet; it will be written");
}

void PromptCache::watch(const engine::Session& session, const std::vector<engine::Token>& prompt,
                        engine::GenerateOptions& options, bool quiet) const {
  if (path_.empty()) return;
  const auto stored = session.tokens();
  const size_t common = size_t(std::ranges::mismatch(stored, prompt).in1 - stored.begin());
  if (there_ && !quiet)
    note("prompt cache {}: {} tokens, {} of the prompt's {} match", path_, stored.size(), common,
         prompt.size());
  if (read_only_ || common == prompt.size()) return;
  options.on_prompt = [this, &session] { engine::save_state_file(session, 0, path_); };
}

void PromptCache::finish(engine::Session& session, const engine::GenerateResult& result) const {
  if (path_.empty() || !all_ || read_only_) return;
  // The token that reached the limit was printed but never computed: a run that goes on starts after it.
  const bool pending = result.reason == engine::StopReason::kLimit && !result.tokens.empty();
  if (pending && session.size() < session.options().n_ctx)
    session.append(0, std::span(result.tokens).last(1), engine::Want::kNone, nullptr);
  engine::save_state_file(session, 0, path_);
}

}  // namespace kvasir::app
