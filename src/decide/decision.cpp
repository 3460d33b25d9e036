#include "decide/decision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decide/row_state.h"
#include "formats/format.h"

namespace kvasir::decide {
namespace {

constexpr int kLeastContext = 8192;  // a context chosen for the user is not made smaller than this

struct Settled {
  std::string_view id;
  Status status;
  std::string reason;
};

std::optional<Settled> settle_row(const RowState& s) {
#define KVASIR_ROW_RULE(id, status, what, condition, reason) \
  if (condition) return Settled{#id, Status::status, reason};
#include "decide/rules.def"
#undef KVASIR_ROW_RULE
  return std::nullopt;
}

void apply_policies(RowState& s) {
#define KVASIR_POLICY_RULE(id, what, condition, reason) \
  if (condition) return s.set_flash_off(reason);
#include "decide/rules.def"
#undef KVASIR_POLICY_RULE
}

// id and reason of the first rule that excludes the candidate.
std::pair<std::string_view, std::string> exclude(const RowState& s, const Candidate& c) {
#define KVASIR_CANDIDATE_RULE(id, what, condition, reason) \
  if (condition) return {#id, reason};
#include "decide/rules.def"
#undef KVASIR_CANDIDATE_RULE
  return {};
}

Settled settle_outcome(const RowState& s) {
#define KVASIR_OUTCOME_RULE(id, status, what, condition, reason) \
  if (condition) return Settled{#id, Status::status, reason};
#include "decide/rules.def"
#undef KVASIR_OUTCOME_RULE
  return {"unverified", Status::kUnverified, ""};
}

void add_classes(Row& row, const RowState& s, const KvTypes& types, bool planned) {
  for (const LayerClass& l : s.geometry().classes) {
    const bool sliding = l.name == "sliding";
    ClassChoice c;
    c.name = l.name;
    c.head_dim = l.head_dim;
    c.k = types.k_of(sliding);
    c.v = types.v_of(sliding);
    c.flash = planned && s.flash_off().empty() ? "auto" : s.flash_state(l.head_dim);
    if (s.proof())
      if (const Proof::Pair* pair = s.proof()->find(c.k, c.v, l.head_dim, c.flash == "on"))
        c.variant = pair->variant;
    if (c.variant.empty() && !planned && !s.device().isa.empty())
      c.variant = fmt::format("{}/{}.{}.{}", formats::require(c.k).name, formats::require(c.v).name,
                              c.flash == "on" ? "flash" : "plain", s.device().isa);
    if (l.head_dim == 256) row.fa_256 = c.flash;
    if (l.head_dim == 512) row.fa_512 = c.flash;
    row.classes.push_back(c);
  }
}

// The command that would answer what the reason lacks.
std::string next_command(const RowState& s) {
  if (s.chosen() && !s.chosen()->exact && s.chosen()->proved) return "";  // nothing is missing
  const Candidate* c = s.promising();
  if (!c && !s.chosen()) {
    for (const Candidate& other : s.candidates())
      if (other.fits && other.rule == "quality_unknown" && (!c || other.bytes_per_token > c->bytes_per_token))
        c = &other;
  }
  if (c && c->rule != "not_proved")
    return fmt::format("kvasir perplexity --kl -m {} -f TEXT -c 2048 {}", s.request().model,
                       types_flags(c->types));
  if (c || (s.chosen() && !s.chosen()->proved))
    return fmt::format("kvasir verify --backend {}{}", s.device().backend,
                       (c ? *c : *s.chosen()).needs_full ? " --full" : "");
  if (s.chosen() && !s.chosen()->cost) return "kvasir devices --measure";
  return "";
}

void take_outcome(Row& row, RowState& s) {
  const Settled outcome = settle_outcome(s);
  row.rule = outcome.id;
  row.status = outcome.status;
  row.reason = outcome.reason;
  row.next = next_command(s);
  row.no_memory = outcome.id == "no_memory";
  const Candidate& c = s.chosen() ? *s.chosen() : s.stock();
  row.types = c.types;
  row.choice = c.exact ? Choice::kKeepStock : Choice::kCompressed;
  row.bytes_per_token = c.bytes_per_token;
  row.ctx_fits = c.ctx_fits;
  row.n_ubatch = s.n_ubatch(c.types);
  row.need = memory_need(s.geometry(), c.types, s.n_ctx(), row.n_ubatch, s.device().host);
  row.cost = c.cost;
  if (c.cost) row.predicted_tps = 1 / c.cost->total();
  if (c.prompt) row.predicted_prompt_tps = s.n_ctx() / c.prompt->total();
  row.padded_v_bytes =
      padded_v_bytes(s.geometry().head_dims, typed_caches(s.geometry(), c.types), s.n_ctx(), row.n_ubatch);
  if (c.quality) row.kl = c.quality->mean;
  if (s.proof()) row.proof = *s.proof();
  if (c.proved) row.evidence = s.proof()->record;
  add_classes(row, s, c.types, false);
  row.candidates = s.candidates();
}

Row settled_row(Row row, const RowState& s, const RowInputs& inputs, const Settled& settled) {
  row.rule = settled.id;
  row.status = settled.status;
  row.reason = settled.reason;
  row.choice = settled.status == Status::kNotApplicable ? Choice::kNotApplicable : Choice::kKeepStock;
  if (!s.flash_off().empty()) row.reason += "; " + s.flash_off();
  if (settled.status == Status::kHardwareGated) row.next = gate_of(s.row());
  row.proof = inputs.beside;
  if (settled.status == Status::kNotApplicable) return row;
  row.types = {DType::q8_0, DType::q8_0, {}, {}};
  row.bytes_per_token = kv_bytes_per_token(s.geometry(), row.types);
  row.padded_v_bytes =
      padded_v_bytes(s.geometry().head_dims, typed_caches(s.geometry(), row.types), s.n_ctx(), row.n_ubatch);
  add_classes(row, s, row.types, true);
  return row;
}

}  // namespace

std::string_view choice_name(Choice choice) {
  switch (choice) {
    case Choice::kKeepStock:
      return "keep-stock";
    case Choice::kCompressed:
      return "compressed";
    case Choice::kNotApplicable:
      return "not-applicable";
  }
  return "";
}

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kProved:
      return "proved";
    case Status::kDiagnostic:
      return "diagnostic";
    case Status::kUnverified:
      return "unverified";
    case Status::kHardwareGated:
      return "hardware-gated";
    case Status::kRefused:
      return "refused";
    case Status::kNotApplicable:
      return "not-applicable";
  }
  return "";
}

FlashState decide_flash(const RowInputs& inputs, FlashWish wish) {
  const ModelGeometry any;
  Request request;
  request.flash = wish;
  RowState s(any, nullptr, request, inputs, 1);
  apply_policies(s);
  return {s.flash_off().empty(), s.flash_off()};
}

Row decide_row(const ModelGeometry& geometry, const QualityTable* quality, const Request& request,
               const RowInputs& inputs) {
  int n_ctx = request.n_ctx > 0 ? request.n_ctx : geometry.n_ctx_train;
  std::string shrunk;
  for (int attempt = 0;; ++attempt) {
    RowState s(geometry, quality, request, inputs, n_ctx);
    Row row;
    row.backend = inputs.device.row;
    row.device = inputs.device.device;
    row.n_ctx = n_ctx, row.n_ubatch = s.n_ubatch({});
    row.budget = s.budget();
    apply_policies(s);
    if (const auto settled = settle_row(s)) return settled_row(row, s, inputs, *settled);
    s.make_candidates();
    for (Candidate& c : s.candidates()) std::tie(c.rule, c.why) = exclude(s, c);
    s.choose();
    take_outcome(row, s);
    row.reason += shrunk;
    const int fits = s.stock().ctx_fits / 256 * 256;
    if (!row.no_memory || request.n_ctx > 0 || attempt > 0 ||
        fits < std::min(kLeastContext, geometry.n_ctx_train))
      return row;
    shrunk = fmt::format("; {} tokens, which the model was trained for, do not fit", n_ctx);
    n_ctx = fits;
  }
}

std::vector<Rule> rules() {
  return {
#define KVASIR_ROW_RULE(id, status, what, condition, reason) {#id, "row", what},
#define KVASIR_POLICY_RULE(id, what, condition, reason) {#id, "policy", what},
#define KVASIR_CANDIDATE_RULE(id, what, condition, reason) {#id, "candidate", what},
#define KVASIR_OUTCOME_RULE(id, status, what, condition, reason) {#id, "outcome", what},
#include "decide/rules.def"
#undef KVASIR_ROW_RULE
#undef KVASIR_POLICY_RULE
#undef KVASIR_CANDIDATE_RULE
#undef KVASIR_OUTCOME_RULE
  };
}

}  // namespace kvasir::decide
