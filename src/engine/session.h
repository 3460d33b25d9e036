// A session: sequences of tokens, their KV cache, and steps of the model over them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/saved_state.h"
#include "formats/format.h"
#include "formats/tcq_table.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

using text::Token;

struct KvTypes {
  DType k = DType::q8_0, v = DType::q8_0;  // every layer, unless:
  std::optional<DType> k_sliding, v_sliding;
  // The table of tbq3_tcq (formats/tcq_table.h) for every layer; null: Kvasir's own.
  std::shared_ptr<const formats::TcqTable> tcq{};
  bool uses_tcq() const;
};

// Throws Error{kRefused} with required, supported and missing when the backend cannot keep `role` (kKeys or
// kValues) in that type.
void check_kv_type(const backends::Caps& caps, DType type, formats::Role role);

struct SessionOptions {
  int n_ctx = 0;       // positions a sequence may hold; 0: the model's training context
  int n_batch = 2048;  // tokens taken by one append() before it splits
  int n_ubatch = 0;    // rows a step; 0: what suits the backend (decide/memory_fit.h)
  int n_seq = 1;
  KvTypes kv;
  // Tokens of global layers that stay exact besides those of a query's own page: the first of the context and
  // the last before that page. Both round up to pages of 64.
  int kv_exact_first = graph::kSinkTokens, kv_exact_last = 0;
  bool flash_attention = true;
  bool keep_values = false;  // tests: every activation stays readable
  bool trace = false;        // collect time per phase for trace()
};

// `specs` of a model's graph with the types and exact pages that the options ask for.
std::vector<graph::KvSpec> cache_specs(std::vector<graph::KvSpec> specs, const SessionOptions& options);

// Which rows' logits a caller wants.
enum class Want { kNone, kLast, kAll };

class Session {
 public:
  // Throws Error{kRefused} for a KV type not usable in its role or at a head size (before any allocation),
  // Error{kUsage} for a bad size, Error{kNoMemory}.
  Session(std::shared_ptr<Model> model, const SessionOptions& options);
  ~Session();

  Model& model() const;
  const SessionOptions& options() const;  // n_ctx resolved
  // One line a layer class: head size, kernel variant, KV types, flash attention state (DESIGN 5).
  std::vector<std::string> load_lines() const;
  uint64_t kv_bytes() const;                           // allocated
  std::span<const graph::KvSpec> cache_specs() const;  // by Graph::kv
  // SHA-256 of the table that the rows of tbq3_tcq were written with; empty when no layer has that type.
  std::string table_hash() const;

  // Tokens of sequence `seq` now stored.
  int size(int seq = 0) const;
  std::span<const Token> tokens(int seq = 0) const;

  // Appends tokens to a sequence. `on_logits(index in tokens, logits)` is called for the wanted rows, in
  // order; the span is valid inside the call only (null: they stay where they are). Throws Error{kRefused} "context full" when they do not
  // fit: nothing is stored then.
  using OnLogits = std::function<void(int index, std::span<const float> logits)>;
  void append(int seq, std::span<const Token> tokens, Want want, const OnLogits& on_logits);
  // The same; instead of its logits the last row gives its `n_best` best candidates, chosen where the logits
  // are (backends::Backend::best). False when this backend does not choose: on_logits was called instead.
  using OnBest = std::function<void(std::span<const backends::Candidate> best)>;
  bool append_best(int seq, std::span<const Token> tokens, int n_best, const OnBest& on_best,
                   const OnLogits& on_logits);
  // Generation: appends `first`, then each time the next token, which `sampler` (candidates() > 0) says how to
  // choose, `n` in all. `on_chosen` gets every chosen token in order, before it is appended (the last never is), and
  // ends it by returning false. It must not change the session. Where the backend can, the token is chosen on
  // the device and the next step is under way by then; what on_chosen then refuses is as if it had never been
  // there. Returns how many were appended.
  using OnChosen = std::function<bool(Token)>;
  int append_chosen(int seq, Token first, int n, Sampler& sampler, const OnChosen& on_chosen);
  int append_greedy(int seq, Token first, int n, const OnChosen& on_chosen);
  // One token for each of several sequences in one step; logits of each.
  struct SeqToken {
    int seq;
    Token token;
  };
  void append_each(std::span<const SeqToken> tokens, const OnLogits& on_logits);

  // Drops tokens so that `seq` is the longest prefix of `tokens` it can still reuse (rounded down to a page
  // once that is encoded, and always leaving at least one token to compute); returns its length. `note` says
  // when a sliding window forced a full reprocess.
  int reuse_prefix(int seq, std::span<const Token> tokens, std::string* note = nullptr);
  // Keeps the first n tokens. Rounds DOWN to what is still whole (the page that n lies in, once encoded;
  // sliding windows); returns what was kept.
  int truncate(int seq, int n);
  void clear(int seq);
  // Makes `to` equal to `from`.
  void copy(int from, int to);
  // Context shift: keeps the first n_keep tokens (rounded up to a page), discards at least n_discard after
  // them (rounded up to a page), and renumbers the rest. No stored key is touched. Returns how many tokens
  // were discarded.
  int shift(int seq, int n_keep, int n_discard);

  // The saved state of a sequence (docs/formats.md): its tokens and everything that the cache holds of them.
  // A session that loads it goes on with the same bits as the one that saved it. save_state: Error{kRefused}
  // on a backend whose pages cannot be read.
  uint64_t state_bytes(int seq) const;
  void save_state(int seq, const StateSink& sink) const;
  // Makes `seq` what was saved, whatever it was. The state must be of this model and these cache types, and
  // fit n_ctx. Every byte is checked before anything changes. Throws as StateReader does, with the session as
  // it was; only a source whose bytes change between two readings leaves `seq` empty.
  void load_state(int seq, StateSource& source);

  // Everything that the cache holds of a sequence, a side of a page at a time, as a saved state has it: rows
  // in wire form, [kv_head][row][bytes of a row].
  using OnPage = std::function<void(const StateRecord& page, std::span<const std::byte> rows)>;
  void read_pages(int seq, const OnPage& on_page) const;

  // Activation by graph value name after the last step (keep_values only).
  std::span<const float> inspect(const std::string& value_name) const;
  std::vector<backends::TraceRow> trace() const;
  backends::Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::engine
