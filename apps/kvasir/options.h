// Options that several sub-commands share, and what the engine gets from them.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "console.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "flags.h"

namespace kvasir::app {

// Rows of the flag table.
std::vector<Flag> model_flags();    // -m --backend -t -ngl
std::vector<Flag> context_flags();  // -c -b -ub
// -ctk -ctv --kv-swa -fa; with "auto" as default also what the decision is asked with.
std::vector<Flag> cache_flags(std::string_view default_type = "auto");
std::vector<Flag> choice_flags();  // --kl-max --prefer-exact-kv --allow-unverified
std::vector<Flag> sampling_flags(std::string_view default_temperature);
std::vector<Flag> prompt_flags();  // -p -f
std::vector<Flag> output_flags();  // --json -v -q --help
Flag help_flag();
Flag json_flag();
std::vector<Flag> join(std::initializer_list<std::vector<Flag>> parts);

Loudness loudness(const Args& args);
// The test model that comes with the program. Throws Error{kBadFile} naming where it was looked for.
std::string test_model();
// -m, or the test model (said on stderr).
std::string model_path(const Args& args);
// Throws Error{kNoDevice} for a backend that is not here and for layers asked onto a GPU (-ngl) without one.
void require_backend(std::string_view backend);
void require_backend(const Args& args);
int thread_count(const Args& args);
std::shared_ptr<engine::Model> load_model(const Args& args);
// The same with the options of a session over it, which are settled (and refused) before the weights are
// loaded.
std::shared_ptr<engine::Model> load_model(const Args& args, engine::SessionOptions& session);
std::shared_ptr<engine::Model> load_model(const std::string& path, int n_threads, Loudness loudness,
                                          const std::string& backend = "cpu");
// What a backend offers. Throws Error{kNoDevice} when it is not here.
const backends::Caps& backend_caps(const std::string& backend = "cpu");
// Name of the mix of weight types that a file says it is; empty when it says none.
std::string recipe_name(const gguf::File& file);
// Types a KV cache can have here, as a list and as text.
std::vector<std::string> cache_type_names();
std::string cache_types_text();
// -ctk, -ctv: throws Error{kRefused} for a type without the role, or without attention here.
DType kv_type(std::string_view name, bool keys, const std::string& backend = "cpu");
// "auto" counts as q8_0 here; session_options decides.
engine::KvTypes kv_types(const Args& args);
// --tcq-table; null when it is not given. Throws Error{kBadFile}.
std::shared_ptr<const formats::TcqTable> tcq_table(const Args& args);
Flag tcq_table_flag(std::string_view group);
// -fa: "auto" is what the decision's policies say of the device that `backend` opens; off is said with its
// reason.
bool flash_attention(std::string_view word, std::string_view what, const std::string& backend);
// Options of a session over `model`; n_ctx resolved and checked against the memory that is free, cache types
// decided when they are "auto" (the reason is said unless quiet).
engine::SessionOptions session_options(const Args& args, const engine::Model& model);
// Rows of a step: as asked for (`n_batch` at most), else 0 for what suits the backend, or n_batch when that is
// fewer.
int micro_batch(int n_ubatch, int n_batch, std::string_view backend);
// Throws Error{kNoMemory} with required, free and the largest context that fits; weights count until they are
// loaded. Sets an n_ubatch of 0.
void require_memory(const engine::Model& model, engine::SessionOptions& options);
engine::SamplerOptions sampler_options(const Args& args);
// Text of -p (escapes resolved) or -f; throws Error{kUsage} when there is none, or when it is not UTF-8.
std::string prompt_text(const Args& args);
// Whole file, or standard input for "-". Throws Error{kBadFile}.
std::string read_text(const std::string& path);
// Throws Error{kUsage} "WHAT: not UTF-8 at byte N".
void require_utf8(std::string_view text, std::string_view what);
// "\n" "\t" "\\" "\"" "\x41" -> the character.
std::string resolve_escapes(std::string_view text);

}  // namespace kvasir::app
