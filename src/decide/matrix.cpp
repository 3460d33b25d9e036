#include "decide/matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "decide/explain.h"
#include "decide/json_reader.h"
#include "formats/format.h"

namespace kvasir::decide {
namespace {

struct Shown {
  std::string_view geometry, weights;
};
// What people run: eight bits where the machine holds them, else the mix of four.
constexpr Shown kShown[] = {{"gemma4-e2b", "q8_0"},       {"gemma4-e4b", "q8_0"},   {"gemma4-12b", "q4_k_m"},
                            {"gemma4-26b-a4b", "q4_k_m"}, {"gemma4-31b", "q4_k_m"}, {"gemma3-270m", "q8_0"}};
constexpr int kContexts[] = {4096, 8192, 32768, 131072, 262144};

const MachineTable* machine_of(const MatrixInputs& inputs, const Device& device) {
  const MachineTable* best = nullptr;
  for (const MachineTable& table : inputs.machines)
    if (table.backend == device.backend && table.device == device.device &&
        (!best || table.date > best->date))
      best = &table;
  return best;
}

const QualityTable* quality_of(const MatrixInputs& inputs, std::string_view geometry) {
  const auto found = std::ranges::find(inputs.qualities, geometry, &QualityTable::geometry);
  return found == inputs.qualities.end() ? nullptr : &*found;
}

using Kernels = std::map<std::string, std::string>;

bool stale(const Kernels& kernels, const std::string& backend, const std::string& hash) {
  const auto found = kernels.find(backend);
  return found != kernels.end() && !found->second.empty() && found->second != hash;
}

RowInputs inputs_of(const MatrixInputs& all, const Kernels& kernels, const Evidence& record) {
  RowInputs inputs;
  inputs.device = device_of(record);
  Here here{record.kernel_hash, record.device, record.device_uuid};
  if (stale(kernels, record.backend, record.kernel_hash)) here.kernel_hash = kernels.at(record.backend);
  inputs.proof = summarise(record, here);
  if (const MachineTable* table = machine_of(all, inputs.device)) {
    inputs.machine = *table;
    inputs.device.memory_bytes = table->memory_bytes;
  }
  return inputs;
}

// The fastest compressed pair, whatever is known of its quality.
const Candidate* fastest(const Row& row) {
  const Candidate* best = nullptr;
  for (const Candidate& c : row.candidates)
    if (!c.exact && c.cost && (!best || c.gain > best->gain)) best = &c;
  return best;
}

const Candidate* of_types(const Row& row, const KvTypes& types) {
  const auto found = std::ranges::find(row.candidates, types, &Candidate::types);
  return found == row.candidates.end() || !found->cost ? nullptr : &*found;
}

std::string speed(const Candidate& c) { return number_text(1 / c.cost->total(), 3); }

std::string short_reason(const Row& row, const Candidate* best) {
  if (row.status == Status::kRefused || row.choice == Choice::kCompressed) return row.reason;
  if (!best || !row.candidates[0].cost) return row.reason;
  return best->gain < kDefaultMinGain ? "stock: no other is faster by more than the noise" : best->why;
}

std::string context_rows(const ModelGeometry& g, const QualityTable* quality, const RowInputs& inputs) {
  std::string out =
      "| context | KV q8_0 | prompt tokens/s q8_0, f16, tbq4_h | q8_0 tokens/s | f16 tokens/s | tbq4_h tokens/s "
      "(over q8_0) | fastest (over q8_0) | decision | status | why |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |\n";
  for (const int n_ctx : kContexts) {
    if (n_ctx > g.n_ctx_train) {
      out += fmt::format("| {} | | | | | | | | | beyond the {} tokens of training |\n", context_text(n_ctx),
                         context_text(g.n_ctx_train));
      continue;
    }
    Request request;
    request.n_ctx = n_ctx;
    const Row row = decide_row(g, quality, request, inputs);
    const auto with = [&](const Candidate* c) {
      return c ? fmt::format("{} ({:+.1f} %)", speed(*c), 100 * c->gain) : std::string("-");
    };
    const auto prompt = [&](const Candidate* c) {
      return c && c->prompt ? number_text(n_ctx / c->prompt->total(), 3) : std::string("-");
    };
    const Candidate* stock = of_types(row, {DType::q8_0, DType::q8_0, {}, {}});
    const Candidate* f16 = of_types(row, {DType::f16, DType::f16, {}, {}});
    const Candidate* four = of_types(row, {DType::tbq4_h, DType::tbq4_h, {}, {}});
    const Candidate* best = fastest(row);
    out += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", context_text(n_ctx),
        bytes_text(kv_bytes(g, {}, n_ctx, row.n_ubatch)),
        fmt::format("{}, {}, {}", prompt(stock), prompt(f16), prompt(four)), stock ? speed(*stock) : "-",
        f16 ? speed(*f16) : "-", with(four), best ? types_text(best->types) + " " + with(best) : "-",
        row.choice == Choice::kCompressed ? types_text(row.types) : std::string(choice_name(row.choice)),
        status_name(row.status), short_reason(row, best));
  }
  return out;
}

// The first context, page by page of 64, from which the pair is faster than stock by more than the noise.
std::string stock_stops(const ModelGeometry& g, const MachineTable& machine, const KvTypes& types) {
  const auto gain = [&](int n_ctx) {
    const Prediction stock = predict_step(machine, g, {}, n_ctx),
                     other = predict_step(machine, g, types, n_ctx);
    return stock.cost && other.cost ? stock.cost->total() / other.cost->total() - 1 : -1;
  };
  if (gain(g.n_ctx_train) < kDefaultMinGain)
    return fmt::format("not within {} ({:+.1f} % there)", context_text(g.n_ctx_train),
                       100 * gain(g.n_ctx_train));
  int below = 0, above = g.n_ctx_train / graph::kPageTokens;  // pages
  while (above - below > 1) {
    const int middle = (below + above) / 2;
    (gain(middle * graph::kPageTokens) >= kDefaultMinGain ? above : below) = middle;
  }
  return fmt::format("from {} tokens", above * graph::kPageTokens);
}

std::string model_part(const MatrixInputs& all, const Shown& shown, const std::vector<RowInputs>& devices) {
  const QualityTable* quality = quality_of(all, shown.geometry);
  const std::string weights =
      quality && !quality->weights.empty() ? quality->weights : std::string(shown.weights);
  const ModelGeometry g = published_geometry(*gguf::find_geometry(shown.geometry), weights);
  std::string out = fmt::format("### {}, {} weights\n\n{}.\n", shown.geometry, weights, model_line(g));
  if (quality)
    for (const QualityRow& row : quality->rows)
      out += fmt::format(
          "\nKL of {} from f16 on {} (file {}): mean {:.6f}, 99.9 % {:.4f}, same top token {:.1f} %, over {} "
          "tokens in windows of {}.\n",
          types_text(row.types), quality->model, quality->fingerprint.substr(0, 8), row.mean, row.p999,
          100 * row.same_top, row.n_tokens, row.n_ctx);
  else
    out += fmt::format(
        "\nNo KL was measured on this model (no weights here): compressed types may not be chosen; `kvasir "
        "perplexity --kl -m MODEL -f TEXT -c 2048 -ctk tbq4_h -ctv tbq4_h` measures it.\n");
  for (const RowInputs& inputs : devices) {
    if (g.n_expert > 0 && !inputs.device.experts) {
      out += fmt::format("\n**{}: {}**: {}.\n", inputs.device.row, inputs.device.device,
                         decide_row(g, quality, {}, inputs).reason);
      continue;
    }
    out += fmt::format("\n**{}: {}**\n\n{}", inputs.device.row, inputs.device.device,
                       context_rows(g, quality, inputs));
    if (!inputs.machine) continue;
    out += "\nWhere stock stops winning (by more than 5 %), by predicted time alone:";
    for (const DType type : {DType::tbq4_h, DType::tbq3_h, DType::tbq2_h})
      out += fmt::format(" {} {};", formats::require(type).name,
                         stock_stops(g, *inputs.machine, {type, type, {}, {}}));
    out.back() = '.';
    out += '\n';
  }
  return out + '\n';
}

// When and how the costs of a device were taken.
std::string costs_text(const RowInputs& inputs, const Kernels& kernels) {
  if (!inputs.machine) return "not measured";
  const MachineTable& t = *inputs.machine;
  std::string text = t.foreign > kContended
                         ? fmt::format("others using {:.0f} % of the machine", 100 * t.foreign)
                         : fmt::format("an idle machine (others: {:.0f} %)", 100 * t.foreign);
  if (stale(kernels, t.backend, t.kernel_hash) || t.kernel_hash != inputs.proof->kernel_hash)
    text += fmt::format("; stale: of other kernels ({})", t.kernel_hash.substr(0, 12));
  return text;
}

std::string device_part(const std::vector<RowInputs>& devices, const Kernels& kernels) {
  std::string out =
      "### Records\n\n| row | device | kernels | date | checks | worst share of a bound | counts | read | "
      "costs measured on |\n| --- | --- | --- | --- | ---: | --- | --- | ---: | --- |\n";
  for (const RowInputs& inputs : devices) {
    const Proof& p = *inputs.proof;
    const bool old = stale(kernels, inputs.device.backend, p.kernel_hash);
    out +=
        fmt::format("| {} | {} | `{}` {} | {} | {}/{} | {:.2f} ({}) | {} | {} | {} |\n", inputs.device.row,
                    p.device, p.kernel_hash.substr(0, 12), inputs.device.isa, p.date.substr(0, 10), p.passed,
                    p.total, p.worst, p.worst_check,
                    p.valid ? "yes"
                    : old   ? "stale: " + p.against
                            : "no: " + p.against,
                    inputs.machine ? fmt::format("{:.1f} GB/s", inputs.machine->read_gb_per_s) : "-",
                    costs_text(inputs, kernels));
  }
  return out + '\n';
}

std::string gated_part(const std::vector<RowInputs>& devices) {
  std::string out =
      "### Backends without a record\n\n| row | decision | status | flash attention | next |\n"
      "| --- | --- | --- | --- | --- |\n";
  const ModelGeometry g = published_geometry(*gguf::find_geometry(kShown[0].geometry));
  for (const std::string_view row : row_names()) {
    if (std::ranges::find(devices, row, [](const RowInputs& d) { return std::string_view(d.device.row); }) !=
        devices.end())
      continue;
    RowInputs inputs;
    inputs.device.row = inputs.device.backend = row;
    inputs.device.absent = "no record of such a device";
    const Row decided = decide_row(g, nullptr, {}, inputs);
    out += fmt::format("| {} | {} | {} | {} | {} |\n", row, choice_name(decided.choice),
                       status_name(decided.status), decided.fa_512.empty() ? "-" : decided.fa_512,
                       decided.next.empty() ? decided.reason : decided.next);
  }
  return out;
}

// What `kvasir bench` measured beside what the costs of the same device and kernels predict.
std::string speed_part(const MatrixInputs& inputs) {
  std::string rows;
  for (const SpeedTable& table : inputs.speeds)
    for (const SpeedRow& row : table.rows) {
      const std::optional<double> predicted = predict_again(inputs.machines, table, row);
      if (!predicted) continue;
      rows += fmt::format("| {} | {} {} | {} | {} | {} | {} | {:+.0f} %{} |\n", row.device, table.geometry,
                          table.weights.empty() ? "q8_0" : table.weights, types_text(row.types),
                          row.n_prompt > 0 ? fmt::format("prompt of {} at {}", row.n_prompt, row.depth)
                                           : fmt::format("generation at {}", row.depth),
                          number_text(*predicted, 3), number_text(row.measured, 3),
                          100 * (row.measured / *predicted - 1), row.contended ? ", contended" : "");
    }
  if (rows.empty()) return "";
  return "### Predicted and measured\n\n| device | model | cache | test | predicted tokens/s | measured | "
         "off by |\n| --- | --- | --- | --- | ---: | ---: | ---: |\n" +
         rows + "\n";
}

}  // namespace

void add_evidence(MatrixInputs& inputs, std::string_view text, std::string_view name) {
  const auto json = parse_json(text, name);
  const std::string kind = json.is_object() ? json.value("kind", std::string()) : std::string();
  if (kind == "machine")
    inputs.machines.push_back(machine_from_json(text, name));
  else if (kind == "quality")
    inputs.qualities.push_back(quality_from_json(text, name));
  else if (kind == "speed")
    inputs.speeds.push_back(speed_from_json(text, name));
  else
    inputs.records.push_back(from_json(text, name));
}

std::string matrix_markdown(const MatrixInputs& inputs, const std::map<std::string, std::string>& kernels) {
  std::vector<RowInputs> devices;
  for (const Evidence& record : inputs.records) devices.push_back(inputs_of(inputs, kernels, record));
  const auto order = [](const RowInputs& d) {
    const auto names = row_names();
    return std::tuple(std::ranges::find(names, std::string_view(d.device.row)) - names.begin(),
                      d.device.device, d.proof->date);
  };
  std::ranges::sort(devices, {}, order);
  std::string out = device_part(devices, kernels) + gated_part(devices) + "\n" + speed_part(inputs);
  for (const Shown& shown : kShown) out += model_part(inputs, shown, devices);
  out += "### Rules\n\n| id | kind | what it says |\n| --- | --- | --- |\n";
  for (const Rule& rule : rules()) out += fmt::format("| {} | {} | {} |\n", rule.id, rule.kind, rule.what);
  out.erase(out.find_last_not_of('\n') + 1);
  return out + "\n";
}

}  // namespace kvasir::decide
