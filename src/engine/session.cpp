#include <algorithm>

#include "base/error.h"
#include "decide/memory_fit.h"
#include "engine/session_impl.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

using graph::kPageTokens;
using graph::Row;

namespace {

void check_options(const SessionOptions& o, const Model& model) {
  const auto need = [](bool ok, const char* flag, int value, const char* rule) {
    if (!ok) fail(ErrorCode::kUsage, "{} is {}; it must be {}", flag, value, rule);
  };
  need(o.n_ctx >= 0, "context size (-c)", o.n_ctx, "0 (the model's own) or more");
  need(o.n_ubatch >= 0 && o.n_ubatch <= 8192, "micro-batch size (-ub)", o.n_ubatch,
       "0 (what suits the backend) to 8192");
  need(o.n_batch >= 1, "batch size (-b)", o.n_batch, "at least 1");
  need(o.kv_exact_first >= 0, "exact tokens at the start (--kv-exact-first)", o.kv_exact_first, "0 or more");
  need(o.kv_exact_last >= 0, "exact tokens at the end (--kv-exact-last)", o.kv_exact_last, "0 or more");
  need(o.n_seq >= 1 && o.n_seq <= 256, "number of sequences", o.n_seq, "between 1 and 256");
  const backends::Caps caps = model.backend().caps();
  for (DType type : {o.kv.k, o.kv.k_sliding.value_or(o.kv.k)}) check_kv_type(caps, type, formats::kKeys);
  for (DType type : {o.kv.v, o.kv.v_sliding.value_or(o.kv.v)}) check_kv_type(caps, type, formats::kValues);
  for (const graph::KvSpec& spec : model.graph().kv) {
    const bool sliding = spec.window > 0;
    for (DType type : {sliding ? o.kv.k_sliding.value_or(o.kv.k) : o.kv.k,
                       sliding ? o.kv.v_sliding.value_or(o.kv.v) : o.kv.v}) {
      const formats::Format& format = formats::require(type);
      if (!format.takes(spec.head_dim))
        fail(ErrorCode::kRefused, "KV type {}: required: {}; layer {} has {}", format.name,
             format.head_wide() ? std::string("head size 64, 128, 256 or 512")
                                : fmt::format("a head size divisible by {}", format.block),
             spec.layer, spec.head_dim);
    }
  }
}

}  // namespace

bool KvTypes::uses_tcq() const {
  return k == DType::tbq3_tcq || v == DType::tbq3_tcq || k_sliding == DType::tbq3_tcq ||
         v_sliding == DType::tbq3_tcq;
}

void check_kv_type(const backends::Caps& caps, DType type, formats::Role role) {
  const formats::Format& format = formats::require(type);
  const std::string_view side = role == formats::kKeys ? "keys" : "values";
  if (format.has_role(role) && std::ranges::count(caps.kv_types, type)) return;
  std::string supported;
  for (DType known : caps.kv_types)
    if (formats::require(known).has_role(role))
      supported += fmt::format("{}{}", supported.empty() ? "" : " ", formats::require(known).name);
  fail(ErrorCode::kRefused, "KV cache on {}: required: {} in {}; supported: {}; missing: {}", caps.name, side,
       format.name, supported,
       format.has_role(role) ? fmt::format("attention over {}", format.name)
                             : fmt::format("type {} cannot hold {}", format.name, side));
}

std::vector<graph::KvSpec> cache_specs(std::vector<graph::KvSpec> specs, const SessionOptions& options) {
  const auto pages = [](int tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0); };
  for (graph::KvSpec& spec : specs) {
    const bool sliding = spec.window > 0;
    spec.k_type = sliding ? options.kv.k_sliding.value_or(options.kv.k) : options.kv.k;
    spec.v_type = sliding ? options.kv.v_sliding.value_or(options.kv.v) : options.kv.v;
    spec.tcq = options.kv.tcq;
    spec.exact_first = sliding ? 0 : pages(options.kv_exact_first);
    spec.exact_last = sliding ? 0 : pages(options.kv_exact_last);
  }
  return specs;
}

Session::Session(std::shared_ptr<Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  Impl& s = *impl_;
  check_options(options, *model);
  s.model = std::move(model);
  s.options = options;
  if (s.options.n_ctx == 0) s.options.n_ctx = s.model->config().n_ctx_train;
  if (s.options.n_ubatch == 0)
    s.options.n_ubatch = decide::default_micro_batch(s.model->backend().caps().name == "cpu");
  s.options.n_ubatch = std::min({s.options.n_ubatch, s.options.n_batch, s.options.n_ctx});
  s.graph = s.model->graph();
  s.graph.kv = engine::cache_specs(std::move(s.graph.kv), s.options);
  s.tokens.resize(size_t(s.options.n_seq));
  backends::Backend& backend = s.model->backend();
  s.cache =
      std::make_unique<KvCache>(backend, s.graph.kv, s.options.n_ctx, s.options.n_ubatch, s.options.n_seq);
  backends::Decisions decisions;
  decisions.flash = options.flash_attention ? backends::FlashAttention::kOn : backends::FlashAttention::kOff;
  decisions.n_seq = s.options.n_seq;
  decisions.keep_values = options.keep_values;
  decisions.trace = options.trace;
  s.executable =
      backend.compile(s.graph, decisions, s.cache->buffers(), std::max(s.options.n_ubatch, s.options.n_seq));
}

Session::~Session() = default;

Model& Session::model() const { return *impl_->model; }
const SessionOptions& Session::options() const { return impl_->options; }
std::vector<std::string> Session::load_lines() const {
  std::vector<std::string> lines = impl_->executable->describe();
  if (const std::string hash = table_hash(); !hash.empty())
    lines.push_back(fmt::format("tbq3_tcq: {} table, SHA-256 {}", impl_->options.kv.tcq ? "a given" : "Kvasir's own",
                                hash));
  return lines;
}
std::string Session::table_hash() const {
  const KvTypes& kv = impl_->options.kv;
  if (!kv.uses_tcq()) return "";
  return kv.tcq ? kv.tcq->hash : formats::own_tcq_table().hash;
}
uint64_t Session::kv_bytes() const { return impl_->cache->bytes(); }
std::span<const graph::KvSpec> Session::cache_specs() const { return impl_->graph.kv; }
int Session::size(int seq) const { return int(impl_->sequence(seq).size()); }
std::span<const Token> Session::tokens(int seq) const { return impl_->sequence(seq); }

void Session::append(int seq, std::span<const Token> tokens, Want want, const OnLogits& on_logits) {
  Impl& s = *impl_;
  std::vector<Token>& stored = s.sequence(seq);
  for (Token token : tokens) s.check_token(token);
  s.check_room(seq, tokens.size());
  for (size_t begin = 0; begin < tokens.size(); begin += size_t(s.options.n_ubatch)) {
    const size_t end = std::min(tokens.size(), begin + size_t(s.options.n_ubatch));
    s.rows.clear();
    for (size_t i = begin; i < end; ++i) {
      const bool wanted = want == Want::kAll || (want == Want::kLast && i + 1 == tokens.size());
      s.rows.push_back({tokens[i], int32_t(stored.size() + i - begin), seq, wanted});
    }
    s.cache->begin_step();
    s.cache->reserve(seq, int(stored.size()), int(stored.size() + end - begin));
    s.submit();
    stored.insert(stored.end(), tokens.begin() + long(begin), tokens.begin() + long(end));
    if (!on_logits) continue;
    int output = 0;
    for (size_t i = begin; i < end; ++i)
      if (s.rows[i - begin].want_logits) on_logits(int(i), s.executable->read(output++));
  }
}

bool Session::append_best(int seq, std::span<const Token> tokens, int n_best, const OnBest& on_best,
                          const OnLogits& on_logits) {
  Impl& s = *impl_;
  bool chose = false;
  append(seq, tokens, Want::kLast, nullptr);
  if (tokens.empty()) return true;
  if (const auto best = s.executable->best(0, n_best); !best.empty()) {
    on_best(best);
    chose = true;
  } else {
    on_logits(int(tokens.size()) - 1, s.executable->read(0));
  }
  return chose;
}

void Session::append_each(std::span<const SeqToken> tokens, const OnLogits& on_logits) {
  Impl& s = *impl_;
  s.rows.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    s.check_token(tokens[i].token);
    const int pos = int(s.sequence(tokens[i].seq).size());
    s.check_room(tokens[i].seq, 1);
    for (size_t j = 0; j < i; ++j)
      if (tokens[j].seq == tokens[i].seq)
        fail(ErrorCode::kUsage, "sequence {} appears twice in one step", tokens[i].seq);
    s.rows.push_back({tokens[i].token, pos, tokens[i].seq, 1});
  }
  s.cache->begin_step();
  for (const Row& row : s.rows) s.cache->reserve(row.seq, row.pos, row.pos + 1);
  s.submit();
  for (const SeqToken& t : tokens) s.sequence(t.seq).push_back(t.token);
  for (size_t i = 0; i < tokens.size(); ++i)
    on_logits(int(i), s.executable->read(int(i)));
}

int Session::reuse_prefix(int seq, std::span<const Token> tokens, std::string* note) {
  const std::vector<Token>& stored = impl_->sequence(seq);
  const size_t limit = std::min(stored.size(), tokens.empty() ? 0 : tokens.size() - 1);
  const int common =
      int(std::mismatch(stored.begin(), stored.begin() + long(limit), tokens.begin()).first - stored.begin());
  const int kept = truncate(seq, common);
  if (note && common - kept >= kPageTokens)
    *note = fmt::format(
        "{} tokens match the cache, but the sliding window no longer holds the ones before them: the whole "
        "prompt is processed again",
        common);
  return kept;
}

int Session::truncate(int seq, int n) {
  std::vector<Token>& stored = impl_->sequence(seq);
  n = std::clamp(n, 0, int(stored.size()));
  if (n == int(stored.size())) return n;
  // After a shift the stored text is no longer a plain prefix: its keys saw tokens that are gone.
  if (impl_->cache->keep_pages(seq) >= 0) n = 0;
  n = impl_->cache->whole_prefix(seq, n);
  impl_->cache->truncate(seq, n);
  stored.resize(size_t(n));
  return n;
}

void Session::clear(int seq) { truncate(seq, 0); }

void Session::copy(int from, int to) {
  impl_->sequence(to) = impl_->sequence(from);
  impl_->cache->copy(from, to);
}

int Session::shift(int seq, int n_keep, int n_discard) {
  std::vector<Token>& stored = impl_->sequence(seq);
  const auto page_up = [](int n) { return (n + kPageTokens - 1) / kPageTokens * kPageTokens; };
  // Two rope bases are enough only while the kept prefix stays what the first shift made it.
  const int keep_pages = impl_->cache->keep_pages(seq);
  const int begin = keep_pages >= 0 ? keep_pages * kPageTokens : page_up(std::max(n_keep, 0));
  const int end = begin + page_up(std::max(n_discard, 1));
  if (end > int(stored.size()))
    fail(ErrorCode::kRefused,
         "context shift: keeping {} and discarding {} of {} tokens leaves none (both round up to {})", begin,
         end - begin, stored.size(), kPageTokens);
  impl_->cache->shift(seq, begin, end);
  stored.erase(stored.begin() + begin, stored.begin() + end);
  return end - begin;
}

std::span<const float> Session::inspect(const std::string& value_name) const {
  for (size_t v = 0; v < impl_->graph.values.size(); ++v)
    if (impl_->graph.values[v].name == value_name)
      return impl_->executable->inspect(graph::ValueId(v));
  return {};
}

backends::Counters Session::counters() const { return impl_->executable->counters(); }

std::vector<backends::TraceRow> Session::trace() const {
  return impl_->executable->trace();
}

}  // namespace kvasir::engine
