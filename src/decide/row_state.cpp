#include "decide/row_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/format.h"

namespace kvasir::decide {
namespace {

bool exact_type(DType t) {
  return t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::q8_0;
}

// A trellis type is for global layers: sliding ones take the head-wide type of the same bits.
std::optional<DType> plain_of(DType type) {
  const formats::Format& format = formats::require(type);
  if (!format.trellis) return std::nullopt;
  const formats::Format* plain =
      formats::find(std::string(format.name.substr(0, format.name.find('_'))) + "_h");
  return plain ? std::optional(plain->type) : std::nullopt;
}

constexpr double kFourBitError = 0.0125;  // NMSE that any four-bit type stays under

std::string ms(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

}  // namespace

RowState::RowState(const ModelGeometry& geometry, const QualityTable* quality, const Request& request,
                   const RowInputs& inputs, int n_ctx)
    : geometry_(geometry), quality_(quality), request_(request), inputs_(inputs), n_ctx_(n_ctx) {
  const uint64_t reserve = request.reserve.value_or(device().host ? kDefaultReserve : kDeviceReserve);
  if (request.memory)
    budget_ = usable(*request.memory, request.reserve.value_or(0));
  else if (device().memory_bytes > 0)
    budget_ = usable(device().memory_bytes, reserve);
}

int RowState::n_ubatch(const KvTypes& types) const {
  if (request_.n_ubatch > 0) return request_.n_ubatch;
  return fitting_micro_batch(
      device().host, budget_ > 0 ? std::optional(budget_) : std::nullopt,
      [&](int rows) { return memory_need(geometry_, types, n_ctx_, rows, device().host); });
}

int RowState::least_ubatch() const { return request_.n_ubatch > 0 ? request_.n_ubatch : kHostMicroBatch; }

std::string RowState::beside_text() const {
  if (!inputs_.beside) return "";
  const Proof& p = *inputs_.beside;
  return fmt::format("; shown beside it, not counted: {} of {}, {}, {}/{} passed{}",
                     p.valid ? "a record" : "a diagnostic record", p.device, p.date.substr(0, 10), p.passed,
                     p.total, p.valid ? "" : " (" + p.against + ")");
}

int RowState::missing_head_size() const {
  for (const LayerClass& c : geometry_.classes)
    if (std::ranges::find(device().head_dims, c.head_dim) == device().head_dims.end()) return c.head_dim;
  return 0;
}

std::string RowState::missing_weights() const {
  std::string names;
  for (const StepWeights& part : geometry_.step)
    if (std::ranges::find(device().weight_types, part.type) == device().weight_types.end())
      names += (names.empty() ? "" : " ") + std::string(formats::require(part.type).name);
  return names;
}

std::string RowState::missing_type(const Candidate& c) const {
  for (const bool sliding : {false, true}) {
    const formats::Format &k = formats::require(c.types.k_of(sliding)),
                          &v = formats::require(c.types.v_of(sliding));
    const auto has = [&](const formats::Format& f, formats::Role role) {
      return f.has_role(role) && std::ranges::find(device().kv_types, f.type) != device().kv_types.end();
    };
    if (!has(k, formats::kKeys)) return fmt::format("keys in {}", k.name);
    if (!has(v, formats::kValues)) return fmt::format("values in {}", v.name);
  }
  return "";
}

void RowState::add_candidate(const KvTypes& types) {
  const auto same = [&](const Candidate& c) { return c.types == types; };
  if (std::ranges::any_of(candidates_, same)) return;
  Candidate c;
  c.types = types;
  c.exact = exact_type(types.k) && exact_type(types.v) && exact_type(types.k_of(true)) &&
            exact_type(types.v_of(true));
  if (!missing_type(c).empty() || !shape_problem(geometry_, types).empty()) {
    candidates_.push_back(c);
    return;
  }
  c.bytes_per_token = kv_bytes_per_token(geometry_, types);
  const MemoryNeed need = memory_need(geometry_, types, n_ctx_, least_ubatch(), device().host);
  c.kv_bytes = need.kv;
  c.need = need.total();
  c.fits = budget_ == 0 || c.need <= budget_;
  c.ctx_fits = budget_ == 0
                   ? geometry_.n_ctx_train
                   : largest_context(geometry_, types, budget_, std::max(geometry_.n_ctx_train, n_ctx_),
                                     least_ubatch(), device().host);
  if (inputs_.machine) {
    const Prediction prediction = predict_step(*inputs_.machine, geometry_, types, n_ctx_);
    c.cost = prediction.cost;
    c.cost_missing = prediction.missing;
    c.prompt =
        predict_prompt(*inputs_.machine, geometry_, types, n_ctx_, 0, std::min(n_ubatch(types), n_ctx_)).cost;
  } else {
    c.cost_missing = "no table of this machine and these kernels: kvasir devices --measure";
  }
  if (quality_)
    if (const QualityRow* row = find_quality(*quality_, types)) c.quality = *row;
  prove(c);
  if (!candidates_.empty() && c.cost && stock().cost) c.gain = stock().cost->total() / c.cost->total() - 1;
  candidates_.push_back(c);
}

void RowState::prove(Candidate& c) const {
  const Proof* p = proof();
  if (!p) {
    c.unproved = "no record of `kvasir verify` on this device";
    return;
  }
  if (!p->valid) {
    c.unproved = "no valid record: " + p->against;
    return;
  }
  for (const LayerClass& l : geometry_.classes) {
    const bool sliding = l.name == "sliding", flash = flash_state(l.head_dim) == "on";
    if (p->find(c.types.k_of(sliding), c.types.v_of(sliding), l.head_dim, flash)) continue;
    // Without flash attention scores and mix are two passes: each type with itself proves every pair.
    const DType k = c.types.k_of(sliding), v = c.types.v_of(sliding);
    if (!flash && p->find(k, k, l.head_dim, false) && p->find(v, v, l.head_dim, false)) continue;
    c.needs_full = true;
    c.unproved = fmt::format("the record has no passed check of {}/{} at head size {} (kvasir verify --full)",
                             formats::require(k).name, formats::require(v).name, l.head_dim);
    return;
  }
  c.proved = true;
}

void RowState::make_candidates() {
  add_candidate({DType::q8_0, DType::q8_0, {}, {}});
  add_candidate({DType::f16, DType::f16, {}, {}});
  for (const DType type : device().kv_types) {
    const formats::Format& format = formats::require(type);
    if (!format.has_role(formats::kKeys) || !format.has_role(formats::kValues) || exact_type(type)) continue;
    const std::optional<DType> plain = plain_of(type);
    add_candidate({type, type, plain, plain});
  }
  if (quality_)
    for (const QualityRow& row : quality_->rows) add_candidate(row.types);
}

bool RowState::is_f16(const Candidate& c) const { return c.types == KvTypes{DType::f16, DType::f16, {}, {}}; }

bool RowState::f16_wanted(const Candidate& c) const {
  return request_.prefer_exact && c.ctx_fits >= std::min(stock().ctx_fits, geometry_.n_ctx_train);
}

void RowState::choose() {
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& c = candidates_[i];
    if (!c.allowed()) continue;
    if (is_f16(c)) {  // allowed only when it was asked for and costs nothing
      chosen_ = int(i);
      return;
    }
    if (c.exact && i > 0) continue;  // other exact types: only by name
    if (chosen_ < 0) {
      chosen_ = int(i);
      continue;
    }
    const Candidate& best = candidates_[size_t(chosen_)];
    const bool faster = c.cost && best.cost
                            ? c.cost->total() < best.cost->total()
                            : c.quality && best.quality && c.quality->mean < best.quality->mean;
    if (faster) chosen_ = int(i);
  }
}

const Candidate* RowState::promising() const {
  // First what only lacks a record, then what most models bear (four bits), then the rest; in each the
  // fastest.
  const auto rank = [](const Candidate& c) {
    if (c.rule == "not_proved") return 2;
    const formats::Format &k = formats::require(c.types.k), &v = formats::require(c.types.v);
    return int(std::max(k.theory(256), v.theory(256)) <= kFourBitError);
  };
  const Candidate* best = nullptr;
  for (const Candidate& c : candidates_) {
    if (c.rule != "quality_unknown" && c.rule != "quality_thin" && c.rule != "not_proved") continue;
    if (!c.cost || c.gain < request_.min_gain) continue;
    if (!best || std::pair(rank(c), c.gain) > std::pair(rank(*best), best->gain)) best = &c;
  }
  return best;
}

std::string RowState::flash_state(int) const { return flash_off_.empty() ? "on" : "off"; }

std::string RowState::memory_refusal() const {
  const Candidate* most = nullptr;
  const Candidate* longest = nullptr;  // whatever its quality
  for (const Candidate& c : candidates_) {
    const bool only_context =
        c.rule == "context" && (c.exact || (c.quality && c.quality->n_tokens >= kMinScored &&
                                            c.quality->mean <= request_.kl_max && c.proved));
    if (only_context && (!most || c.ctx_fits > most->ctx_fits)) most = &c;
    if (!longest || c.ctx_fits > longest->ctx_fits) longest = &c;
  }
  const MemoryNeed need = memory_need(geometry_, stock().types, n_ctx_, least_ubatch(), device().host);
  std::string text =
      fmt::format("required: {} for {} tokens of {} ({} weights, {} cache, {} scratch); usable: {}",
                  bytes_text(need.total()), n_ctx_, stock_text(), bytes_text(need.weights),
                  bytes_text(need.kv), bytes_text(need.scratch), bytes_text(budget_));
  if (need.weights > budget_)
    return text + "; the weights alone do not fit: a smaller model or fewer bits a weight would";
  if (most && most->ctx_fits > 0)
    text += fmt::format("; largest that fits: {} tokens in {}", most->ctx_fits, types_text(most->types));
  else
    text += "; no context fits";
  if (longest && most && longest->ctx_fits > most->ctx_fits)
    text += fmt::format("; {} would hold {}, but {}", types_text(longest->types), longest->ctx_fits,
                        longest->fits ? longest->why : "it does not fit either");
  return text;
}

std::string RowState::explanation() const {
  const Candidate& c = *chosen();
  std::string text = types_text(c.types);
  if (c.cost)
    text += fmt::format(" {:.3g} tokens/s at {} (weights {}, attention {}, starts {})", 1 / c.cost->total(),
                        n_ctx_, ms(c.cost->weights), ms(c.cost->attention), ms(c.cost->starts));
  else
    text += fmt::format(", no prediction ({})", c.cost_missing);
  if (c.cost && inputs_.machine->foreign > kContended)
    text += fmt::format(", from figures taken while other programs used {:.0f} % of the machine",
                        100 * inputs_.machine->foreign);
  if (!c.exact && stock_fits() && stock().cost)
    text += fmt::format(", {:+.1f} % over {}", 100 * c.gain, stock_text());
  if (!c.exact && c.prompt && stock_fits() && stock().prompt)
    text += fmt::format(", prompts {:+.1f} %", 100 * (stock().prompt->total() / c.prompt->total() - 1));
  if (!c.exact && !stock_fits())
    text += fmt::format("; {} holds {} tokens, this {}", stock_text(), stock().ctx_fits, c.ctx_fits);
  if (!c.exact && c.quality)
    text += fmt::format(", mean KL {:.4f} over {} tokens (limit {:.4f})", c.quality->mean,
                        c.quality->n_tokens, request_.kl_max);
  if (is_f16(c)) text += fmt::format("; exact cache asked for, and {} tokens fit as well", c.ctx_fits);
  if (c.exact && !is_f16(c)) {
    const Candidate* next = promising();
    const Candidate* near = nullptr;
    for (const Candidate& other : candidates_)
      if (!other.exact && other.cost && (!near || other.gain > near->gain)) near = &other;
    const Candidate* shown = next ? next : near;
    if (shown)
      text += fmt::format("; {} would be {:+.1f} %, but {}", types_text(shown->types), 100 * shown->gain,
                          shown->gain < request_.min_gain
                              ? fmt::format("less than {:.0f} % is noise", 100 * request_.min_gain)
                              : shown->why);
  }
  if (!flash_off_.empty()) text += "; " + flash_off_;
  return text;
}

}  // namespace kvasir::decide
