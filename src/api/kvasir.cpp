// The C interface over the engine.
#include "kvasir/kvasir.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "build_info.h"
#include "engine/generate.h"
#include "engine/model.h"
#include "engine/session.h"
#include "engine/state_io.h"
#include "formats/format.h"

using kvasir::ErrorCode;
namespace engine = kvasir::engine;

struct kvasir_model {
  std::shared_ptr<engine::Model> model;
};

struct kvasir_session {
  std::unique_ptr<engine::Session> session;
  std::atomic<bool> cancel{false};
};

namespace {

thread_local std::string last_error;

// Runs `body` and turns whatever it throws into a status and a message.
template <typename Body>
kvasir_status guarded(Body&& body) {
  try {
    body();
    return KVASIR_OK;
  } catch (const kvasir::Error& error) {
    last_error = error.what();
    return kvasir_status(int(error.code()));
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
    return KVASIR_NO_MEMORY;
  } catch (const std::exception& error) {
    last_error = error.what();
    return KVASIR_FAILED;
  }
}

void need(bool ok, const char* what) {
  if (!ok) kvasir::fail(ErrorCode::kUsage, "{}", what);
}

template <typename Options>
Options given(const Options* options, Options fallback, const char* name) {
  if (!options) return fallback;
  if (options->struct_size != sizeof(Options))
    kvasir::fail(ErrorCode::kUsage, "{}.struct_size is {}; this library's is {} (use {}_default())", name,
                 options->struct_size, sizeof(Options), name);
  return *options;
}

// Copies as much as fits; the count tells the rest.
template <typename T, typename Range>
void copy_out(const Range& range, T* out, size_t capacity, size_t* n, const char* what) {
  *n = range.size();
  if (range.size() > capacity)
    kvasir::fail(ErrorCode::kUsage, "{} needs room for {}; capacity is {}", what, range.size(), capacity);
  std::copy(range.begin(), range.end(), out);
}

// A type by name; `option` is the field that named it.
kvasir::DType kv_type(const char* option, const char* name, kvasir::formats::Role role) {
  try {
    return kvasir::formats::require(std::string_view(name), role).type;
  } catch (const kvasir::Error& error) {
    kvasir::fail(error.code(), "kvasir_session_options.{}: {}", option, error.what());
  }
}

}  // namespace

const char* kvasir_version(void) { return kvasir::build_info::kVersion; }
int kvasir_abi_version(void) { return KVASIR_ABI_VERSION; }
const char* kvasir_last_error(void) { return last_error.c_str(); }

kvasir_model_options kvasir_model_options_default(void) {
  kvasir_model_options options{};
  options.struct_size = sizeof options;
  options.backend = "cpu";
  return options;
}

kvasir_status kvasir_model_load(const char* path, const kvasir_model_options* options, kvasir_model** out) {
  if (out) *out = nullptr;
  return guarded([&] {
    need(path && out, "kvasir_model_load: path and out must not be NULL");
    const kvasir_model_options o = given(options, kvasir_model_options_default(), "kvasir_model_options");
    engine::LoadOptions load;
    load.path = path;
    load.backend = o.backend ? o.backend : "cpu";
    load.n_threads = o.n_threads;
    if (o.progress) load.progress = [&](float p) { o.progress(p, o.progress_user); };
    *out = new kvasir_model{engine::Model::load(load)};
  });
}

void kvasir_model_free(kvasir_model* model) { delete model; }

kvasir_status kvasir_model_geometry(const kvasir_model* model, kvasir_geometry* out) {
  return guarded([&] {
    need(model && out, "kvasir_model_geometry: model and out must not be NULL");
    need(out->struct_size == sizeof(kvasir_geometry), "kvasir_model_geometry: set out->struct_size to sizeof(kvasir_geometry)");
    const kvasir::gguf::ModelConfig& c = model->model->config();
    kvasir_geometry g{};
    g.struct_size = sizeof g;
    std::strncpy(g.arch, c.arch.c_str(), sizeof g.arch - 1);
    g.n_params = model->model->n_params();
    g.weight_bytes = model->model->weight_bytes();
    g.n_layer = c.n_layer;
    g.n_embd = c.n_embd;
    g.n_vocab = c.n_vocab;
    g.n_ctx_train = c.n_ctx_train;
    for (const kvasir::gguf::LayerConfig& layer : c.layers) {
      const kvasir_layer_class key{layer.window, 0, 0, layer.n_head, layer.n_kv, layer.head_dim};
      kvasir_layer_class* cls = std::find_if(g.classes, g.classes + g.n_classes, [&](const kvasir_layer_class& k) {
        return k.window == key.window && k.n_head == key.n_head && k.n_kv == key.n_kv && k.head_dim == key.head_dim;
      });
      if (cls == g.classes + g.n_classes) {
        need(g.n_classes < 4, "kvasir_model_geometry: more than four classes of layers");
        *cls = key;
        ++g.n_classes;
      }
      ++cls->n_layers;
      cls->n_owned += layer.kv_donor < 0;
    }
    *out = g;
  });
}

kvasir_status kvasir_tokenize(const kvasir_model* model, const char* text, size_t length, int add_bos,
                              int parse_special, int32_t* ids, size_t capacity, size_t* n) {
  return guarded([&] {
    need(model && (text || length == 0) && n && (ids || capacity == 0), "kvasir_tokenize: an argument is NULL");
    const kvasir::text::Tokenizer& tokenizer = model->model->tokenizer();
    std::vector<int32_t> tokens = tokenizer.encode({text, length}, parse_special != 0);
    if (add_bos) tokens.insert(tokens.begin(), tokenizer.bos());
    copy_out(tokens, ids, capacity, n, "kvasir_tokenize");
  });
}

kvasir_status kvasir_detokenize(const kvasir_model* model, const int32_t* ids, size_t n_ids, char* text,
                                size_t capacity, size_t* n) {
  return guarded([&] {
    need(model && (ids || n_ids == 0) && n && (text || capacity == 0), "kvasir_detokenize: an argument is NULL");
    for (size_t i = 0; i < n_ids; ++i)
      if (ids[i] < 0 || ids[i] >= model->model->tokenizer().size())
        kvasir::fail(ErrorCode::kUsage, "kvasir_detokenize: id {} at index {} is outside the vocabulary of {}", ids[i], i,
                     model->model->tokenizer().size());
    copy_out(model->model->tokenizer().decode({ids, n_ids}), text, capacity, n, "kvasir_detokenize");
  });
}

kvasir_status kvasir_chat_tokens(const kvasir_model* model, const kvasir_message* messages, size_t n_messages,
                                 int thinking, int32_t* ids, size_t capacity, size_t* n) {
  return guarded([&] {
    need(model && messages && n && (ids || capacity == 0), "kvasir_chat_tokens: an argument is NULL");
    std::vector<kvasir::text::Message> conversation;
    for (size_t i = 0; i < n_messages; ++i) {
      need(messages[i].role && messages[i].content, "kvasir_chat_tokens: role and content must not be NULL");
      conversation.push_back({messages[i].role, messages[i].content});
    }
    kvasir::text::ChatOptions options = model->model->chat_options();
    options.thinking = thinking != 0;
    const kvasir::text::Tokenizer& tokenizer = model->model->tokenizer();
    std::vector<int32_t> tokens = kvasir::text::encode_chat(tokenizer, model->model->chat_family(), conversation, options);
    tokens.insert(tokens.begin(), tokenizer.bos());
    copy_out(tokens, ids, capacity, n, "kvasir_chat_tokens");
  });
}

kvasir_session_options kvasir_session_options_default(void) {
  const engine::SessionOptions defaults;
  kvasir_session_options options{};
  options.struct_size = sizeof options;
  options.n_batch = defaults.n_batch;
  options.n_ubatch = defaults.n_ubatch;
  options.k_type = options.v_type = "q8_0";
  options.flash_attention = 1;
  options.kv_exact_first = defaults.kv_exact_first;
  options.kv_exact_last = defaults.kv_exact_last;
  return options;
}

kvasir_status kvasir_session_create(kvasir_model* model, const kvasir_session_options* options, kvasir_session** out) {
  if (out) *out = nullptr;
  return guarded([&] {
    need(model && out, "kvasir_session_create: model and out must not be NULL");
    const kvasir_session_options o = given(options, kvasir_session_options_default(), "kvasir_session_options");
    engine::SessionOptions s;
    s.n_ctx = o.n_ctx;
    s.n_batch = o.n_batch;
    s.n_ubatch = o.n_ubatch;
    s.flash_attention = o.flash_attention != 0;
    s.kv_exact_first = o.kv_exact_first;
    s.kv_exact_last = o.kv_exact_last;
    namespace f = kvasir::formats;
    if (o.k_type) s.kv.k = kv_type("k_type", o.k_type, f::kKeys);
    if (o.v_type) s.kv.v = kv_type("v_type", o.v_type, f::kValues);
    if (o.k_type_sliding) s.kv.k_sliding = kv_type("k_type_sliding", o.k_type_sliding, f::kKeys);
    if (o.v_type_sliding) s.kv.v_sliding = kv_type("v_type_sliding", o.v_type_sliding, f::kValues);
    if (o.tcq_table) s.kv.tcq = f::load_tcq_table(o.tcq_table);
    need(!s.kv.tcq || s.kv.uses_tcq(),
         "kvasir_session_options: tcq_table is for tbq3_tcq, which neither keys nor values have");
    auto session = std::make_unique<kvasir_session>();
    session->session = std::make_unique<engine::Session>(model->model, s);
    *out = session.release();
  });
}

void kvasir_session_free(kvasir_session* session) { delete session; }

void kvasir_session_clear(kvasir_session* session) {
  if (session) session->session->clear(0);
}

int kvasir_session_size(const kvasir_session* session) { return session ? session->session->size(0) : 0; }

uint64_t kvasir_session_kv_bytes(const kvasir_session* session) { return session ? session->session->kv_bytes() : 0; }

kvasir_status kvasir_session_tokens(const kvasir_session* session, int32_t* ids, size_t capacity, size_t* n) {
  return guarded([&] {
    need(session && n && (ids || capacity == 0), "kvasir_session_tokens: an argument is NULL");
    copy_out(session->session->tokens(0), ids, capacity, n, "kvasir_session_tokens");
  });
}

kvasir_status kvasir_session_save(const kvasir_session* session, const char* path) {
  return guarded([&] {
    need(session && path, "kvasir_session_save: session and path must not be NULL");
    engine::save_state_file(*session->session, 0, path);
  });
}

kvasir_status kvasir_session_load(kvasir_session* session, const char* path) {
  return guarded([&] {
    need(session && path, "kvasir_session_load: session and path must not be NULL");
    engine::load_state_file(*session->session, 0, path);
  });
}

kvasir_status kvasir_session_save_memory(const kvasir_session* session, void* bytes, size_t capacity, size_t* n) {
  return guarded([&] {
    need(session && n && (bytes || capacity == 0), "kvasir_session_save_memory: an argument is NULL");
    *n = size_t(session->session->state_bytes(0));
    if (*n > capacity)
      kvasir::fail(ErrorCode::kUsage, "kvasir_session_save_memory needs room for {} bytes; capacity is {}", *n, capacity);
    auto* out = static_cast<std::byte*>(bytes);
    session->session->save_state(0, [&](std::span<const std::byte> part) {
      std::memcpy(out, part.data(), part.size());
      out += part.size();
    });
  });
}

kvasir_status kvasir_session_load_memory(kvasir_session* session, const void* bytes, size_t n) {
  return guarded([&] {
    need(session && bytes, "kvasir_session_load_memory: session and bytes must not be NULL");
    session->session->load_state(0, *engine::state_in_memory({static_cast<const std::byte*>(bytes), n}));
  });
}

kvasir_generate_options kvasir_generate_options_default(void) {
  const engine::SamplerOptions sampler;
  kvasir_generate_options options{};
  options.struct_size = sizeof options;
  options.n_predict = -1;
  options.temperature = sampler.temperature;
  options.top_k = sampler.top_k;
  options.top_p = sampler.top_p;
  options.min_p = sampler.min_p;
  options.repeat_penalty = sampler.repeat_penalty;
  options.seed = sampler.seed;
  return options;
}

kvasir_status kvasir_generate(kvasir_session* session, const int32_t* prompt, size_t n_prompt,
                              const kvasir_generate_options* options, kvasir_token_callback callback, void* user,
                              kvasir_generate_result* result) {
  return guarded([&] {
    need(session && prompt, "kvasir_generate: session and prompt must not be NULL");
    if (result) need(result->struct_size == sizeof *result, "kvasir_generate: set result->struct_size to its sizeof");
    const kvasir_generate_options o = given(options, kvasir_generate_options_default(), "kvasir_generate_options");
    engine::GenerateOptions g;
    g.n_predict = o.n_predict;
    g.ignore_end = o.ignore_end != 0;
    g.sampler.temperature = o.temperature;
    g.sampler.top_k = o.top_k;
    g.sampler.top_p = o.top_p;
    g.sampler.min_p = o.min_p;
    g.sampler.repeat_penalty = o.repeat_penalty;
    g.sampler.seed = o.seed;
    g.cancel = &session->cancel;
    const engine::GenerateResult r =
        engine::generate(*session->session, 0, {prompt, n_prompt}, g, [&](std::string_view text) {
          return !callback || callback(text.data(), text.size(), user) == 0;
        });
    session->cancel = false;
    if (!result) return;
    result->stop = kvasir_stop(int(r.reason));
    result->n_prompt = r.n_prompt;
    result->n_reused = r.n_reused;
    result->n_generated = r.n_generated;
    result->prompt_seconds = r.prompt_seconds;
    result->generate_seconds = r.generate_seconds;
  });
}

void kvasir_cancel(kvasir_session* session) {
  if (session) session->cancel = true;
}

kvasir_status kvasir_eval(kvasir_session* session, const int32_t* ids, size_t n_ids, float* logits, size_t n_logits) {
  return guarded([&] {
    need(session && ids && logits && n_ids > 0, "kvasir_eval: session, ids and logits must not be NULL, n_ids not 0");
    const size_t n_vocab = size_t(session->session->model().config().n_vocab);
    if (n_logits != n_vocab) kvasir::fail(ErrorCode::kUsage, "kvasir_eval: n_logits is {}; it must be {}", n_logits, n_vocab);
    session->session->append(0, {ids, n_ids}, engine::Want::kLast, [&](int, std::span<const float> row) {
      std::memcpy(logits, row.data(), row.size() * sizeof(float));
    });
  });
}
