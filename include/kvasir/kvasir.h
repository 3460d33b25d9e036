/* Kvasir: local inference of Gemma-class language models. The C interface.
 *
 * Rules. Handles are opaque; NULL is accepted by every *_free. Every call that can fail returns a kvasir_status; the
 * message of the last failure on the calling thread is kvasir_last_error(). Texts are UTF-8, lengths are bytes. Option structs
 * start with their own size: fill them with the *_default() call, then change what you need. A model may be shared by sessions on
 * one thread at a time; different models are independent. Nothing here prints, exits or reads the environment.
 */
#ifndef KVASIR_H
#define KVASIR_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVASIR_API
#else
#define KVASIR_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows by one with every change that an existing program could notice. */
#define KVASIR_ABI_VERSION 1

typedef enum kvasir_status {
  KVASIR_OK = 0,
  KVASIR_FAILED = 1,    /* an internal error or a failed step */
  KVASIR_USAGE = 2,     /* a bad argument; the message names it */
  KVASIR_REFUSED = 3,   /* unsupported; the message says required / supported / missing */
  KVASIR_BAD_FILE = 4,  /* a malformed model file; the message names field, offset and reason */
  KVASIR_NO_DEVICE = 5, /* the backend is not here */
  KVASIR_NO_MEMORY = 6  /* does not fit */
} kvasir_status;

typedef enum kvasir_stop {
  KVASIR_STOP_END = 0,          /* the model ended its turn */
  KVASIR_STOP_LIMIT = 1,        /* n_predict tokens were made */
  KVASIR_STOP_CONTEXT_FULL = 2,
  KVASIR_STOP_CANCELLED = 3     /* by the token callback or kvasir_cancel() */
} kvasir_stop;

typedef struct kvasir_model kvasir_model;
typedef struct kvasir_session kvasir_session;

/* "0.1.0"; the text lives for the whole program. */
KVASIR_API const char* kvasir_version(void);
/* KVASIR_ABI_VERSION of the library that is loaded, to compare with the header's. */
KVASIR_API int kvasir_abi_version(void);
/* Message of the last failed call on this thread; "" when none failed. Valid until the next failing call. */
KVASIR_API const char* kvasir_last_error(void);

/* ---- models ---------------------------------------------------------------------------------------------- */

/* progress: 0..1 while weights are prepared. Called on the loading thread. */
typedef void (*kvasir_progress_callback)(float progress, void* user);

typedef struct kvasir_model_options {
  size_t struct_size;
  const char* backend; /* "cpu" */
  int n_threads;       /* 0: every core the process may use */
  kvasir_progress_callback progress; /* may be NULL */
  void* progress_user;
} kvasir_model_options;

KVASIR_API kvasir_model_options kvasir_model_options_default(void);
/* options may be NULL. *out is NULL on failure. */
KVASIR_API kvasir_status kvasir_model_load(const char* path, const kvasir_model_options* options, kvasir_model** out);
KVASIR_API void kvasir_model_free(kvasir_model* model); /* its sessions live on */

/* One class of layers: sliding (window > 0) or global (window == 0). */
typedef struct kvasir_layer_class {
  int window;   /* keys a query sees, itself included; 0: all */
  int n_layers;
  int n_owned;  /* of them, layers with a KV cache of their own */
  int n_head;
  int n_kv;
  int head_dim;
} kvasir_layer_class;

typedef struct kvasir_geometry {
  size_t struct_size;
  char arch[32];
  int64_t n_params;
  uint64_t weight_bytes;
  int n_layer, n_embd, n_vocab, n_ctx_train;
  int n_classes;
  kvasir_layer_class classes[4];
} kvasir_geometry;

/* out->struct_size must be sizeof(kvasir_geometry). */
KVASIR_API kvasir_status kvasir_model_geometry(const kvasir_model* model, kvasir_geometry* out);

/* ---- text ------------------------------------------------------------------------------------------------ */

/* Writes at most `capacity` ids and sets *n to the number there are; KVASIR_USAGE when they do not fit (call again with
 * *n) or the text is not UTF-8. `parse_special`: control tokens in the text become their ids. */
KVASIR_API kvasir_status kvasir_tokenize(const kvasir_model* model, const char* text, size_t length, int add_bos,
                                         int parse_special, int32_t* ids, size_t capacity, size_t* n);
/* Writes at most `capacity` bytes (no terminator) and sets *n to the number there are. */
KVASIR_API kvasir_status kvasir_detokenize(const kvasir_model* model, const int32_t* ids, size_t n_ids, char* text,
                                           size_t capacity, size_t* n);

typedef struct kvasir_message {
  const char* role; /* "system", "user", "assistant" */
  const char* content;
} kvasir_message;

/* The ids of a conversation in the model's chat format, BOS first and the model's turn opened. Only the format's own marks
 * become control tokens: a message that spells "<end_of_turn>" cannot end its turn. Sizes as for kvasir_tokenize(). */
KVASIR_API kvasir_status kvasir_chat_tokens(const kvasir_model* model, const kvasir_message* messages, size_t n_messages,
                                            int thinking, int32_t* ids, size_t capacity, size_t* n);

/* ---- sessions -------------------------------------------------------------------------------------------- */

typedef struct kvasir_session_options {
  size_t struct_size;
  int n_ctx;           /* 0: the model's training context */
  int n_batch, n_ubatch; /* tokens handed over at once; rows a step, 0: 512 on a CPU, 2048 on a GPU, fit or not. 2048, 0 */
  const char* k_type;  /* "q8_0"; see `kvasir formats` */
  const char* v_type;
  const char* k_type_sliding; /* NULL: as k_type */
  const char* v_type_sliding;
  int flash_attention; /* 1 */
  /* Tokens of global layers that stay exact besides the page being written: the first of the context and the last before that
   * page; both round up to 64. 64, 0. */
  int kv_exact_first, kv_exact_last;
  /* NULL: Kvasir's own table for tbq3_tcq; else a file of 512 little-endian f32 levels by state. KVASIR_BAD_FILE when it is not
   * that, KVASIR_USAGE when no type is tbq3_tcq. */
  const char* tcq_table;
} kvasir_session_options;

KVASIR_API kvasir_session_options kvasir_session_options_default(void);
/* options may be NULL. The session keeps its model alive. */
KVASIR_API kvasir_status kvasir_session_create(kvasir_model* model, const kvasir_session_options* options,
                                               kvasir_session** out);
KVASIR_API void kvasir_session_free(kvasir_session* session);
/* Forgets every token. */
KVASIR_API void kvasir_session_clear(kvasir_session* session);
/* Tokens stored; bytes the KV cache holds. */
KVASIR_API int kvasir_session_size(const kvasir_session* session);
KVASIR_API uint64_t kvasir_session_kv_bytes(const kvasir_session* session);

/* Writes at most `capacity` ids of the tokens stored and sets *n to the number there are, as kvasir_tokenize() does. */
KVASIR_API kvasir_status kvasir_session_tokens(const kvasir_session* session, int32_t* ids, size_t capacity, size_t* n);

/* Saved state: the tokens and all that the KV cache holds of them, with the model's hash, the cache types and a checksum a
 * page (docs/formats.md). A session that loads it goes on with the same bits as the one that saved it. Saving replaces a file
 * as a whole or not at all. Loading takes the place of what the session held; the state must be of the same model and cache
 * types and fit n_ctx. Anything else is KVASIR_BAD_FILE (damaged; the message names the page) or KVASIR_REFUSED (of something
 * else), and the session is as it was. A sampler's state is not part of it. */
KVASIR_API kvasir_status kvasir_session_save(const kvasir_session* session, const char* path);
KVASIR_API kvasir_status kvasir_session_load(kvasir_session* session, const char* path);
/* The same to and from memory. Sets *n to the bytes there are; KVASIR_USAGE when they are more than `capacity` (call again
 * with *n; bytes may be NULL when capacity is 0). */
KVASIR_API kvasir_status kvasir_session_save_memory(const kvasir_session* session, void* bytes, size_t capacity, size_t* n);
KVASIR_API kvasir_status kvasir_session_load_memory(kvasir_session* session, const void* bytes, size_t n);

typedef struct kvasir_generate_options {
  size_t struct_size;
  int n_predict; /* -1: until a stop */
  float temperature; /* 0: greedy */
  int top_k;         /* 0: off */
  float top_p;       /* 1: off */
  float min_p;       /* 0: off */
  float repeat_penalty; /* 1: off */
  uint64_t seed;
  int ignore_end;    /* go on after end-of-turn tokens */
} kvasir_generate_options;

typedef struct kvasir_generate_result {
  size_t struct_size;
  kvasir_stop stop;
  int n_prompt, n_reused, n_generated;
  double prompt_seconds, generate_seconds;
} kvasir_generate_result;

/* `text`: whole UTF-8 characters, `length` bytes, not terminated. Return 0 to go on, anything else to stop. */
typedef int (*kvasir_token_callback)(const char* text, size_t length, void* user);

KVASIR_API kvasir_generate_options kvasir_generate_options_default(void);
/* Reuses what the session already holds of the prompt. callback and result may be NULL. */
KVASIR_API kvasir_status kvasir_generate(kvasir_session* session, const int32_t* prompt, size_t n_prompt,
                                         const kvasir_generate_options* options, kvasir_token_callback callback,
                                         void* user, kvasir_generate_result* result);
/* From any thread: the generation in progress (or the next one) stops at the next token. */
KVASIR_API void kvasir_cancel(kvasir_session* session);

/* Appends tokens and copies the logits after the last one (n_vocab floats). */
KVASIR_API kvasir_status kvasir_eval(kvasir_session* session, const int32_t* ids, size_t n_ids, float* logits,
                                     size_t n_logits);

#ifdef __cplusplus
}
#endif
#endif
