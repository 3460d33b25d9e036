#include "decide/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/format.h"

namespace kvasir::decide {
namespace {

using Json = nlohmann::ordered_json;

std::string name(DType type) { return std::string(formats::require(type).name); }

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json proof_json(const std::optional<Proof>& proof) {
  if (!proof) return Json();
  return {{"passed", proof->passed}, {"total", proof->total},
          {"worst", proof->worst},   {"worst_check", proof->worst_check},
          {"device", proof->device}, {"date", proof->date},
          {"valid", proof->valid},   {"kernel_hash", proof->kernel_hash},
          {"doubts", proof->against}};
}

Json cost_json(const std::optional<StepCost>& cost) {
  if (!cost) return Json();
  return {{"weights_ms", cost->weights * 1e3},
          {"attention_ms", cost->attention * 1e3},
          {"starts_ms", cost->starts * 1e3},
          {"rest_ms", cost->rest * 1e3}};
}

Json candidate_json(const Candidate& c, int n_ctx) {
  Json json = {{"k", name(c.types.k)},
               {"v", name(c.types.v)},
               {"k_sliding", name(c.types.k_of(true))},
               {"v_sliding", name(c.types.v_of(true))},
               {"allowed", c.allowed()},
               {"rule", or_null(c.rule)},
               {"why", c.why},
               {"bytes_per_token", c.bytes_per_token},
               {"kv_bytes", c.kv_bytes},
               {"ctx_fits", c.ctx_fits},
               {"predicted_tps", c.cost ? Json(1 / c.cost->total()) : Json()},
               {"predicted_prompt_tps", c.prompt ? Json(n_ctx / c.prompt->total()) : Json()},
               {"gain", c.cost ? Json(c.gain) : Json()},
               {"kl", c.quality ? Json(c.quality->mean) : Json()}};
  return json;
}

Json row_json(const Row& row) {
  Json classes = Json::array(), candidates = Json::array();
  for (const ClassChoice& c : row.classes)
    classes.push_back({{"class", c.name},
                       {"head_dim", c.head_dim},
                       {"k", name(c.k)},
                       {"v", name(c.v)},
                       {"flash_attn", c.flash},
                       {"variant", or_null(c.variant)}});
  for (const Candidate& c : row.candidates) candidates.push_back(candidate_json(c, row.n_ctx));
  return {
      {"backend", row.backend},
      {"device", or_null(row.device)},
      {"decision", choice_name(row.choice)},
      {"status", status_name(row.status)},
      {"rule", row.rule},
      {"classes", classes},
      {"bytes_per_token", row.bytes_per_token ? Json(row.bytes_per_token) : Json()},
      {"ctx", row.n_ctx},
      {"n_ubatch", row.n_ubatch},
      {"ctx_fits", or_null(row.ctx_fits)},
      {"budget_bytes", row.budget ? Json(row.budget) : Json()},
      {"need_bytes", row.need ? Json(row.need->total()) : Json()},
      {"predicted_tps", or_null(row.predicted_tps)},
      {"predicted_prompt_tps", or_null(row.predicted_prompt_tps)},
      {"predicted_step", cost_json(row.cost)},
      {"kl", or_null(row.kl)},
      {"verify", proof_json(row.proof)},
      {"geometry", {{"fa_256", or_null(row.fa_256)}, {"fa_512", or_null(row.fa_512)}, {"padded_v_bytes", row.padded_v_bytes}}},
      {"reason", row.reason},
      {"next", or_null(row.next)},
      {"evidence", or_null(row.evidence)},
      {"candidates", candidates}};
}

// Breaks at spaces; later lines begin with `indent` spaces.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    if (column > indent && column + 1 + length > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, length);
    column += length;
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string number_text(double value, int digits) {
  if (!(value > 0)) return "0";
  const int whole = int(std::floor(std::log10(value))) + 1;
  return fmt::format("{:.{}f}", value, std::max(0, digits - whole));
}

std::string context_text(int n_ctx) {
  return n_ctx >= 1024 && n_ctx % 1024 == 0 ? fmt::format("{}k", n_ctx / 1024) : std::to_string(n_ctx);
}

std::string model_line(const ModelGeometry& g) {
  std::string text = fmt::format("{}: {} layers", g.name, g.n_layer);
  for (const LayerClass& c : g.classes)
    text += fmt::format(", {} {} ({} own their cache; {} heads on {} of {}{})", c.layers, c.name, c.owned,
                        c.n_head, c.n_kv, c.head_dim, c.window ? fmt::format(", window {}", c.window) : "");
  if (g.n_expert > 0) text += fmt::format(", {} of {} experts", g.n_expert_used, g.n_expert);
  return text +
         fmt::format(", {} of weights, trained for {} tokens", bytes_text(g.file_bytes), g.n_ctx_train);
}

int shown_context(const Report& report) {
  if (report.request.n_ctx > 0) return report.request.n_ctx;
  return report.rows.empty() ? report.geometry.n_ctx_train : report.rows[0].n_ctx;
}

Json report_json(const Report& report) {
  Json rows = Json::array();
  for (const Row& row : report.rows) rows.push_back(row_json(row));
  const Row* cpu = report.rows.empty() ? nullptr : &report.rows[0];
  return {{"model", report.geometry.name},
          {"source", report.source},
          {"ctx", shown_context(report)},
          {"budget_bytes", cpu && cpu->budget ? Json(cpu->budget) : Json()},
          {"kl_max", report.request.kl_max},
          {"allow_unverified", report.request.allow_unverified},
          {"rows", rows}};
}

std::string report_text(const Report& report) {
  std::string out = wrapped(model_line(report.geometry) + " (" + report.source + ")", 0, 110) + "\n\n";
  if (report.request.allow_unverified)
    out += "--allow-unverified: compressed types are taken without a record of this device\n\n";
  out += fmt::format("{:<12}{:<15}{:<15}{:<20}{:<7}{:<7}{:>8}{:>9}{:>8}{:>8}{:>9}\n", "backend", "decision",
                     "status", "K/V", "fa 256", "fa 512", "B/token", "ctx fits", "pp t/s", "tg t/s", "KL");
  for (const Row& row : report.rows) {
    const bool none = row.choice == Choice::kNotApplicable;
    const auto text = [](const std::string& s) { return s.empty() ? "-" : s; };
    std::string kv = none ? "-" : types_text(row.types);
    if (kv.size() > 19) kv = kv.substr(0, kv.find(',')) + " *";
    out += fmt::format("{:<12}{:<15}{:<15}{:<20}{:<7}{:<7}{:>8}{:>9}{:>8}{:>8}{:>9}\n", row.backend,
                       choice_name(row.choice), status_name(row.status), kv, text(row.fa_256),
                       text(row.fa_512), row.bytes_per_token ? std::to_string(row.bytes_per_token) : "-",
                       row.ctx_fits ? std::to_string(*row.ctx_fits) : "-",
                       row.predicted_prompt_tps ? number_text(*row.predicted_prompt_tps, 3) : "-",
                       row.predicted_tps ? number_text(*row.predicted_tps, 3) : "-",
                       row.kl ? fmt::format("{:.5f}", *row.kl) : "-");
  }
  out += wrapped(fmt::format("pp: predicted tokens/s of a prompt that fills the context of {} tokens; tg: of "
                             "generation behind it",
                             shown_context(report)),
                 0, 110) +
         "\n\n";
  for (const Row& row : report.rows) {
    out += fmt::format("{:<12}{}\n", row.backend, wrapped(row.reason, 12, 110));
    if (!row.next.empty()) out += fmt::format("{:12}next: {}\n", "", wrapped(row.next, 18, 110));
  }
  return out;
}

}  // namespace kvasir::decide
