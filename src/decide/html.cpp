#include "decide/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "decide/plot.h"
#include "formats/format.h"

namespace kvasir::decide {
namespace {

constexpr std::string_view kStyle = R"(
:root{--bg:#fbfbfa;--fg:#1d1f23;--dim:#5d636c;--rule:#d9dbdf;--card:#fff;--ok:#1a7f4b;--warn:#9a5b00;--bad:#b3261e;
--c0:#2563c9;--c1:#c2410c;--c2:#0f7d6b;--c3:#8a3ab9;--c4:#a16207;--c5:#be185d;--c6:#4d5562;--c7:#3f6d12}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e7e9;--dim:#9aa1ab;--rule:#33373d;--card:#1c1f23;--ok:#5fd39a;
--warn:#f0b45a;--bad:#ff8a80;--c0:#7aa9f7;--c1:#f59a6b;--c2:#56cdb8;--c3:#c996ee;--c4:#e2bd5a;--c5:#f38bb6;--c6:#aab2bd;--c7:#a3d06b}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 48px}h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.1rem;margin:32px 0 6px}
p{margin:6px 0}.dim{color:var(--dim)}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.wrap{overflow-x:auto;border:1px solid var(--rule);border-radius:8px;background:var(--card)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:7px 10px;text-align:left;
border-bottom:1px solid var(--rule);white-space:nowrap;vertical-align:top}tr:last-child td{border-bottom:0}
th{color:var(--dim);font-weight:600;font-size:13px}td.r,th.r{text-align:right}
.proved{color:var(--ok)}.hardware-gated,.unverified,.diagnostic{color:var(--warn)}.refused{color:var(--bad)}
.row{margin:12px 0;padding:10px 12px;border:1px solid var(--rule);border-radius:8px;background:var(--card);overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:16px}
figure{margin:0;padding:12px;border:1px solid var(--rule);border-radius:8px;background:var(--card)}
figcaption{margin:0 0 8px}svg{width:100%;height:auto;display:block}
.t,.n,.bt{font:13px system-ui,sans-serif;fill:var(--dim)}.n{fill:var(--fg);font-size:12px}.bt{fill:var(--bad)}
.g{stroke:var(--rule)}.b{stroke:var(--bad);stroke-dasharray:5 4;stroke-width:1.5}.l{fill:none;stroke-width:2}.d{stroke:none}
@media (max-width:520px){th,td{padding:6px 7px}.t,.n,.bt{font-size:16px}.l{stroke-width:3}
.cards thead{display:none}.cards tr{display:block;padding:8px 4px;border-bottom:1px solid var(--rule)}
.cards td{display:flex;justify-content:space-between;gap:12px;border:0;padding:2px 8px;white-space:normal;text-align:right}
.cards td::before{content:attr(data-h);color:var(--dim);text-align:left}})";

constexpr int kColors = 8;

std::string colors() {
  std::string css;
  for (int i = 0; i < kColors; ++i)
    css += fmt::format(".l.s{0}{{stroke:var(--c{0})}}.d.s{0}{{fill:var(--c{0})}}", i);
  return css;
}

std::string cell(const char* head, const std::string& text, const char* cls = "") {
  return fmt::format("<td data-h=\"{}\" class=\"{}\">{}</td>", head, cls,
                     text.empty() ? "&ndash;" : escaped(text));
}

std::string matrix(const Report& report) {
  std::string out =
      "<div class=\"wrap\"><table class=\"cards\"><thead><tr><th>backend</th><th>decision</th><th>status</th>"
      "<th>keys / values</th><th>flash 256</th><th>flash 512</th><th class=\"r\">bytes a token</th>"
      "<th class=\"r\">context that fits</th><th class=\"r\">prompt, tokens/s</th><th class=\"r\">tokens/s</th><th "
      "class=\"r\">KL</th></tr></thead>\n";
  for (const Row& row : report.rows) {
    const bool none = row.choice == Choice::kNotApplicable;
    out += "<tr>" + cell("backend", row.backend) + cell("decision", std::string(choice_name(row.choice))) +
           fmt::format("<td data-h=\"status\" class=\"{0}\">{0}</td>", status_name(row.status)) +
           cell("keys / values", none ? "" : types_text(row.types)) + cell("flash 256", row.fa_256) +
           cell("flash 512", row.fa_512) +
           cell("bytes a token", row.bytes_per_token ? std::to_string(row.bytes_per_token) : "", "r") +
           cell("context that fits", row.ctx_fits ? std::to_string(*row.ctx_fits) : "", "r") +
           cell("prompt, tokens/s",
                row.predicted_prompt_tps ? number_text(*row.predicted_prompt_tps, 3) : "", "r") +
           cell("tokens/s", row.predicted_tps ? number_text(*row.predicted_tps, 3) : "", "r") +
           cell("KL", row.kl ? fmt::format("{:.5f}", *row.kl) : "", "r") + "</tr>\n";
  }
  out += "</table></div>\n";
  for (const Row& row : report.rows) {
    out += fmt::format("<div class=\"row\"><strong>{}</strong> {}", row.backend, escaped(row.reason));
    if (!row.next.empty())
      out += fmt::format("<br><span class=\"dim\">next:</span> <code>{}</code>", escaped(row.next));
    out += "</div>\n";
  }
  return out;
}

std::string figure(const std::string& caption, const std::string& body) {
  return fmt::format("<figure><figcaption>{}</figcaption>{}</figure>\n", escaped(caption), body);
}

// Types that people compare, widest first.
const std::vector<DType>& shown_types() {
  static const std::vector<DType> types = {DType::f16,    DType::q8_0,   DType::q4_0,    DType::tbq4_h,
                                           DType::tbq3_h, DType::tbq2_h, DType::tbq4_ht, DType::tbq3_ht};
  return types;
}

KvTypes both(DType type) { return {type, type, {}, {}}; }
std::string label(DType type) { return std::string(formats::require(type).name); }

std::string kv_plot(const Report& report) {
  const ModelGeometry& g = report.geometry;
  Plot p;
  p.x_title = "context, tokens";
  p.y_title = "KV cache";
  p.log_x = p.log_y = true;
  p.x_min = 1024;
  p.x_max = std::max(2048, g.n_ctx_train);
  double low = 1e30, high = 0;
  const int n_ubatch = report.rows.empty() ? kHostMicroBatch : report.rows[0].n_ubatch;
  for (size_t i = 0; i < shown_types().size(); ++i) {
    const KvTypes types = both(shown_types()[i]);
    if (!shape_problem(g, types).empty()) continue;
    Series s{label(types.k), {}, int(i), true, {}};
    for (double n = p.x_min; n <= p.x_max * 1.0001; n *= std::sqrt(2.0)) {
      const double bytes = double(kv_bytes(g, types, int(n), n_ubatch));
      s.points.push_back({n, bytes});
      low = std::min(low, bytes);
      high = std::max(high, bytes);
    }
    p.series.push_back(s);
  }
  const Row& cpu = report.rows[0];
  if (cpu.budget && cpu.need) {
    const double left = double(usable(cpu.budget, cpu.need->weights + cpu.need->scratch));
    if (left > 0) p.lines.push_back({left, "budget less weights: " + bytes_text(uint64_t(left))});
    low = std::min(low, std::max(left, 1.0));
    high = std::max(high, left * 1.3);
  }
  p.y_min = low / 1.3;
  p.y_max = high * 1.3;
  p.x_ticks = power_ticks(p.x_min, p.x_max, p.x_max > 64 * p.x_min ? 4 : 2,
                          [](double v) { return context_text(int(v)); });
  p.y_ticks = power_ticks(p.y_min, p.y_max, p.y_max > 1000 * p.y_min ? 8 : 4,
                          [](double v) { return bytes_text(uint64_t(v)); });
  return figure("Exact size of the cache, window, table and open pages counted, against the context",
                plot_svg(p));
}

std::string quality_plot(const Report& report, const QualityTable* quality) {
  const ModelGeometry& g = report.geometry;
  const int head = g.classes.empty() ? 256 : g.classes.back().head_dim;
  const bool measured = quality && !quality->rows.empty();
  Plot p;
  p.x_title = fmt::format("bits a value at head size {}", head);
  p.y_title = measured ? "mean KL, nats" : "error of a value (theory)";
  p.log_y = true;
  p.x_max = 9.5;
  Series s{"", {}, 0, false, {}};
  const auto bits = [&](DType k, DType v) {
    return (formats::require(k).bits_per_value(head) + formats::require(v).bits_per_value(head)) / 2;
  };
  if (measured) {
    for (const QualityRow& row : quality->rows) {
      s.points.push_back({bits(row.types.k, row.types.v), std::max(row.mean, 1e-7)});
      s.names.push_back(types_text(row.types));
    }
    p.lines.push_back({report.request.kl_max, fmt::format("--kl-max {:g}", report.request.kl_max)});
  } else {
    for (const formats::Format& f : formats::all()) {
      if (!f.has_role(formats::kKeys) || !f.has_role(formats::kValues) || !f.takes(head) ||
          f.theory(head) < 1e-5)
        continue;
      s.points.push_back({f.bits_per_value(head), f.theory(head)});
      s.names.push_back(std::string(f.name));
    }
  }
  p.y_min = measured ? 1e-7 : 1e-5;
  p.y_max = 1;
  for (const auto& [x, y] : s.points) p.y_min = std::min(p.y_min, y / 2);
  // Sorted by height so that names which would lie on each other are moved apart.
  std::vector<size_t> order(s.points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](size_t a, size_t b) { return s.points[a].second < s.points[b].second; });
  Series sorted = s;
  for (size_t i = 0; i < order.size(); ++i) {
    sorted.points[i] = s.points[order[i]];
    sorted.names[i] = s.names[order[i]];
  }
  p.series.push_back(sorted);
  p.x_ticks = {{0, "0"}, {2, "2"}, {4, "4"}, {6, "6"}, {8, "8"}};
  p.y_ticks = power_ticks(p.y_min, p.y_max, 10, [](double v) { return fmt::format("{:g}", v); });
  return figure(
      measured
          ? "Quality on this model, as perplexity --kl measured it"
          : "Quality: not measured on this model (kvasir perplexity --kl); the theory of each type instead",
      plot_svg(p));
}

// Predictions of the host against the context, for the types people compare.
std::string speed_plot(const Report& report, bool prompts) {
  const ModelGeometry& g = report.geometry;
  const std::string caption = prompts ? "Predicted speed of reading a prompt against its length"
                                      : "Predicted generation speed against what is stored";
  if (!report.machine)
    return figure(caption,
                  "<p class=\"dim\">No figures of this machine: <code>kvasir devices "
                  "--measure</code> takes them.</p>");
  Plot p;
  p.x_title = prompts ? "tokens of the prompt" : "tokens stored";
  p.y_title = fmt::format("predicted tokens/s, {}", report.machine->backend);
  p.log_x = true;
  p.x_min = prompts ? 512 : 1024;
  p.x_max = std::max(2048, g.n_ctx_train);
  const int n_ubatch = report.request.n_ubatch > 0 ? report.request.n_ubatch
                                                   : default_micro_batch(report.machine->backend == "cpu");
  for (size_t i = 0; i < shown_types().size(); ++i) {
    const KvTypes types = both(shown_types()[i]);
    if (!shape_problem(g, types).empty()) continue;
    Series s{label(types.k), {}, int(i), true, {}};
    for (double n = p.x_min; n <= p.x_max * 1.0001; n *= std::sqrt(2.0)) {
      const Prediction predicted =
          prompts ? predict_prompt(*report.machine, g, types, int(n), 0, n_ubatch)
                  : predict_step(*report.machine, g, types, int(n));
      if (!predicted.cost) break;
      s.points.push_back({n, (prompts ? n : 1) / predicted.cost->total()});
      p.y_max = std::max(p.y_max, s.points.back().second * 1.1);
    }
    if (!s.points.empty()) p.series.push_back(s);
  }
  if (p.series.empty())
    return figure(caption,
                  "<p class=\"dim\">The figures of this machine are older: <code>kvasir devices --measure</code> "
                  "takes what is missing.</p>");
  p.x_ticks = power_ticks(p.x_min, p.x_max, p.x_max > 64 * p.x_min ? 4 : 2,
                          [](double v) { return context_text(int(v)); });
  for (int i = 0; i <= 4; ++i) p.y_ticks.push_back({p.y_max * i / 4, number_text(p.y_max * i / 4, 2)});
  return figure(caption, plot_svg(p));
}

std::string check_plot(const SpeedTable* speed) {
  if (!speed || speed->rows.empty())
    return figure(
        "Predicted against measured tokens/s",
        "<p class=\"dim\">Nothing measured on this model: <code>kvasir bench</code> adds points here.</p>");
  Plot p;
  p.x_title = "predicted tokens/s";
  p.y_title = "measured tokens/s";
  p.diagonal = p.log_x = p.log_y = true;
  double low = 1e30, high = 0;
  bool busy = false;
  for (const SpeedRow& row : speed->rows) {
    if (!(row.predicted > 0) || !(row.measured > 0)) continue;
    const std::string label = (row.n_prompt > 0 ? "prompts, " : "") + types_text(row.types);
    auto s = std::ranges::find(p.series, label, &Series::label);
    if (s == p.series.end()) s = p.series.insert(s, {label, {}, int(p.series.size()) % kColors, false, {}});
    s->points.push_back({row.predicted, row.measured});
    busy |= row.contended;
    low = std::min({low, row.predicted, row.measured});
    high = std::max({high, row.predicted, row.measured});
  }
  p.x_min = p.y_min = low / 1.5;
  p.x_max = p.y_max = high * 1.5;
  p.x_ticks = p.y_ticks = power_ticks(p.x_min, p.x_max, 2, [](double v) { return number_text(v, 2); });
  return figure(
      std::string("Predicted against measured tokens/s: on the dashed line the prediction was right") +
          (busy ? "; some were measured while other programs used the machine" : ""),
      plot_svg(p));
}

}  // namespace

std::string report_html(const Report& report, const QualityTable* quality, const SpeedTable* speed) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">";
  out += fmt::format("<title>kvasir decide: {}</title>\n<style>{}{}</style></head><body><main>\n",
                     escaped(report.geometry.name), kStyle, colors());
  out += fmt::format("<h1>{}</h1>\n<p class=\"dim\">{} ({})</p>\n", escaped(report.geometry.name),
                     escaped(model_line(report.geometry)), escaped(report.source));
  const Row& cpu = report.rows[0];
  out += fmt::format(
      "<p>Decided for a context of {} tokens{}. Hardware that is not present is gated, not passed.</p>\n",
      shown_context(report),
      cpu.budget ? fmt::format(" and {} of memory", bytes_text(cpu.budget)) : "");
  out +=
      "<h2>Decision for each backend</h2>\n" + matrix(report) + "<h2>Figures</h2>\n<div class=\"plots\">\n";
  out += kv_plot(report) + quality_plot(report, quality) + speed_plot(report, true) + speed_plot(report, false) +
         check_plot(speed);
  return out + "</div>\n</main></body></html>\n";
}

}  // namespace kvasir::decide
