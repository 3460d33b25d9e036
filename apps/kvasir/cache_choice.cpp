#include "cache_choice.h"

#include <algorithm>

#include "base/error.h"
#include "decision_inputs.h"
#include "formats/format.h"
#include "machine.h"
#include "self_check.h"
#include "store.h"

namespace kvasir::app {
namespace {

bool stock(DType type) {
  const std::array kStock = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q5_0, DType::q4_0};
  return std::ranges::find(kStock, type) != kStock.end();
}

std::string pair_text(const AttentionUse& use) {
  return fmt::format("{}/{} at head size {}", formats::require(use.k).name, formats::require(use.v).name,
                     use.head_dim);
}

// In the order of the load lines: global layers, then sliding ones.
std::vector<AttentionUse> uses_of(const engine::Session& session) {
  std::vector<AttentionUse> uses;
  for (const bool sliding : {false, true})
    for (const graph::KvSpec& spec : session.cache_specs())
      if ((spec.window > 0) == sliding) {
        uses.push_back({spec.k_type, spec.v_type, spec.head_dim, session.options().flash_attention});
        break;
      }
  return uses;
}

bool covered(const decide::Proof& proof, const AttentionUse& use) {
  if (proof.find(use.k, use.v, use.head_dim, use.flash)) return true;
  return !use.flash && proof.find(use.k, use.k, use.head_dim, false) &&
         proof.find(use.v, use.v, use.head_dim, false);
}

}  // namespace

bool types_are_automatic(const Args& args) {
  return args.text("cache-type-k") == "auto" && args.text("cache-type-v") == "auto" && !args.given("kv-swa");
}

CacheQuestion cache_question(const Args& args) {
  CacheQuestion question;
  question.kl_max = args.number("kl-max");
  question.prefer_exact = args.on("prefer-exact-kv");
  question.allow_unverified = args.on("allow-unverified");
  return question;
}

decide::Row decide_cache(const engine::Model& model, const CacheQuestion& question) {
  const decide::ModelGeometry geometry = decide::read_geometry(model.file());
  const auto quality = current_quality(geometry.fingerprint);
  decide::Request request;
  request.n_ctx = question.n_ctx;
  request.n_ubatch = question.n_ubatch;
  request.kl_max = question.kl_max;
  request.prefer_exact = question.prefer_exact;
  request.allow_unverified = question.allow_unverified;
  request.flash = question.flash ? decide::FlashWish::kOn : decide::FlashWish::kOff;
  request.model = model.path();
  const std::string backend = model.backend().caps().name;
  const decide::RowInputs inputs = live_row(backend, model.n_threads());
  // Weights that are in already are not asked for again.
  if (inputs.device.host) {
    const uint64_t loaded =
        model.has_weights() ? decide::memory_need(geometry, {}, question.n_ctx, question.n_ubatch, true).weights
                            : 0;
    request.memory = memory_available() + loaded;
  }
  return decide::decide_row(geometry, quality ? &*quality : nullptr, request, inputs);
}

namespace {

// A record of these kernels on this device in which the pair failed is more than the lack of one.
void refuse_wrong(const decide::Proof& proof, const std::vector<AttentionUse>& uses, bool allow_unverified) {
  for (const AttentionUse& use : uses) {
    const auto same = [&](const decide::Proof::Pair& p) {
      return p.k == use.k && p.v == use.v && p.head_dim == use.head_dim && p.flash == use.flash;
    };
    if (allow_unverified || std::ranges::none_of(proof.wrong, same)) continue;
    fail(ErrorCode::kRefused,
         "attention over {}: required: kernels that are right on this machine; `kvasir verify` found these wrong "
         "here ({}, {}); choose other types with -ctk and -ctv, run `kvasir verify` again, or go on with "
         "--allow-unverified, which every output then says",
         pair_text(use), proof.record, proof.date.substr(0, 10));
  }
}

}  // namespace

SessionEvidence::SessionEvidence(const engine::Session& session, bool allow_unverified) {
  const std::string backend = session.model().backend().caps().name;
  const decide::Here here = here_of(backend);
  std::optional<decide::Proof> proof;
  const auto& given = session.options().kv.tcq;
  auto record = stored_record(backend, here, given ? given->hash : "");
  const bool same_table = !given || record;  // a record proves the table that it was made with
  if (!record) record = stored_record(backend, here);
  if (record) proof = decide::summarise(*record, here);
  const std::vector<AttentionUse> uses = uses_of(session);
  if (proof) refuse_wrong(*proof, uses, allow_unverified);
  std::vector<AttentionUse> unproved;
  const auto by_table = [](const AttentionUse& use) {
    return use.k == DType::tbq3_tcq || use.v == DType::tbq3_tcq;
  };
  for (const AttentionUse& use : uses)
    if ((!proof || !proof->valid || !covered(*proof, use) || (by_table(use) && !same_table)) &&
        std::ranges::find(unproved, use) == unproved.end())
      unproved.push_back(use);
  app::self_check(backend, here.device, session.model().n_threads(), unproved, &self_check_);
  lines_ = session.load_lines();
  std::string doubtful;
  for (size_t i = 0; i < uses.size() && i < lines_.size(); ++i) {
    const bool proved = std::ranges::find(unproved, uses[i]) == unproved.end(),
               plain = stock(uses[i].k) && stock(uses[i].v);
    lines_[i] += proved ? fmt::format(", proved ({}/{} checks, {})", proof->passed, proof->total,
                                      proof->date.substr(0, 10))
                        : ", self-checked";
    if (!proved && !plain && std::ranges::find(uses.begin(), uses.begin() + long(i), uses[i]) == uses.begin() + long(i))
      doubtful += (doubtful.empty() ? "" : ", ") + pair_text(uses[i]);
  }
  state_ = unproved.empty() ? "proved" : doubtful.empty() ? "self-checked" : "unverified";
  if (unproved.empty()) record_ = proof->record;
  if (!doubtful.empty())
    warning_ = fmt::format("warning: {}no record of `kvasir verify` proves {} on this machine",
                           allow_unverified ? "--allow-unverified: " : "", doubtful);
}

nlohmann::ordered_json SessionEvidence::json() const {
  return {{"evidence", state_},
          {"record", record_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(record_)},
          {"warning", warning_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(warning_)}};
}

void SessionEvidence::show(bool quiet) const {
  if (!quiet) {
    if (!self_check_.empty()) note(self_check_);
    for (const std::string& line : lines_) note(line);
  }
  if (!warning_.empty()) note(warning_);
}

}  // namespace kvasir::app
