#include "decide/cost.h"

#include <algorithm>
#include <cctype>

#include "decide/json_reader.h"
#include "formats/format.h"

namespace kvasir::decide {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name(DType type) { return formats::require(type).name; }

using Figure = double AttentionCost::*;

// ns a key of exactly this pair.
std::optional<double> measured(const MachineTable& table, DType k, DType v, int head_dim, double heads,
                               Figure figure) {
  const AttentionCost *low = nullptr, *high = nullptr;
  for (const AttentionCost& row : table.attention) {
    if (row.k != k || row.v != v || row.head_dim != head_dim || !(row.*figure > 0)) continue;
    if (!low || row.heads_each < low->heads_each) low = &row;
    if (!high || row.heads_each > high->heads_each) high = &row;
  }
  if (!low) return std::nullopt;
  if (low->heads_each == high->heads_each) return low->*figure;
  const double slope =
      std::max(0.0, (high->*figure - low->*figure) / double(high->heads_each - low->heads_each));
  // Below the fewest heads the bytes bound what is left.
  return low->*figure + slope * std::max(0.0, heads - low->heads_each);
}

// What a type costs on one side: half of the pair with itself, or what is left of a pair with a known other.
std::optional<double> side(const MachineTable& table, DType type, bool keys, int head_dim, double heads,
                           Figure figure) {
  if (const auto both = measured(table, type, type, head_dim, heads, figure)) return *both / 2;
  for (const AttentionCost& row : table.attention) {
    const DType mine = keys ? row.k : row.v, other = keys ? row.v : row.k;
    if (mine != type || row.head_dim != head_dim || other == type) continue;
    const auto pair = measured(table, row.k, row.v, head_dim, heads, figure);
    const auto rest = measured(table, other, other, head_dim, heads, figure);
    if (pair && rest) return std::max(0.0, *pair - *rest / 2);
  }
  return std::nullopt;
}

// Rows of f32 are few (routers, norms); the plain read rate stands for them.
double weight_rate(const MachineTable& table, DType type) {
  const auto found = std::ranges::find(table.weights, type, &WeightCost::type);
  return found != table.weights.end() ? found->gb_per_s : type == DType::f32 ? table.read_gb_per_s : 0;
}

// Seconds of a product beside its bytes.
double product_start(const MachineTable& table, DType type) {
  const auto found = std::ranges::find(table.weights, type, &WeightCost::type);
  return found != table.weights.end() ? found->product_us * 1e-6 : 0;
}

double heads_each(const LayerClass& c) { return double(c.n_head) / double(std::max(c.n_kv, 1)); }

std::string missing_attention(DType k, DType v, int head_dim) {
  return fmt::format("attention over {}/{} at head size {}", name(k), name(v), head_dim);
}

// Tokens that `n_rows` rows behind `depth` stored ones see together, each itself too.
double keys_seen(int n_rows, int depth, int window) {
  const double first = depth + 1, last = double(depth) + n_rows;
  if (window <= 0 || last <= window) return (first + last) / 2 * n_rows;
  const double grow = std::max(0.0, window - double(depth));  // rows that see fewer than the window
  return (first + window) / 2 * grow + (n_rows - grow) * window;
}

}  // namespace

std::string to_json(const MachineTable& t) {
  Json json = {{"schema", t.schema},
               {"kind", "machine"},
               {"backend", t.backend},
               {"device", t.device},
               {"isa", t.isa},
               {"kernel_hash", t.kernel_hash},
               {"date", t.date},
               {"threads", t.threads},
               {"load", t.load},
               {"foreign", t.foreign},
               {"memory_bytes", t.memory_bytes},
               {"read_gb_per_s", t.read_gb_per_s},
               {"int8_gops", t.int8_gops},
               {"f32_gflops", t.f32_gflops},
               {"op_us", t.op_us},
               {"value_ns", t.value_ns},
               {"weights", Json::array()},
               {"attention", Json::array()}};
  for (const WeightCost& w : t.weights)
    json["weights"].push_back({{"type", name(w.type)},
                               {"gb_per_s", w.gb_per_s},
                               {"prompt_gops", w.prompt_gops},
                               {"product_us", w.product_us},
                               {"prompt_product_us", w.prompt_product_us}});
  for (const AttentionCost& a : t.attention)
    json["attention"].push_back({{"k", name(a.k)},
                                 {"v", name(a.v)},
                                 {"head_dim", a.head_dim},
                                 {"heads_each", a.heads_each},
                                 {"ns_per_key", a.ns_per_key},
                                 {"prompt_ns", a.prompt_ns},
                                 {"append_ns", a.append_ns},
                                 {"start_us", a.start_us},
                                 {"window_start_us", a.window_start_us},
                                 {"far_start_us", a.far_start_us},
                                 {"prompt_start_us", a.prompt_start_us}});
  return json.dump(1);
}

MachineTable machine_from_json(std::string_view text, std::string_view file) {
  const auto json = parse_json(text, file);
  const JsonReader r(json, std::string(file));
  MachineTable t;
  if (r.text("kind") != "machine") fail(ErrorCode::kBadFile, "{}: field 'kind' is not 'machine'", file);
  if (r.integer("schema") != kMachineSchema)
    fail(ErrorCode::kBadFile, "{}: field 'schema' is {}; this program reads {}", file, r.integer("schema"),
         kMachineSchema);
  t.backend = r.text("backend");
  t.device = r.text("device");
  t.isa = r.text("isa");
  t.kernel_hash = r.text("kernel_hash");
  t.date = r.text("date");
  t.threads = int(r.integer("threads"));
  t.load = r.positive("load");
  t.foreign = r.positive("foreign");
  t.memory_bytes = uint64_t(r.integer("memory_bytes"));
  t.read_gb_per_s = r.positive("read_gb_per_s");
  t.int8_gops = r.positive("int8_gops");
  t.f32_gflops = r.positive("f32_gflops");
  t.op_us = r.positive("op_us");
  t.value_ns = r.positive_or_0("value_ns");
  const auto& weights = r.list("weights");
  for (size_t i = 0; i < weights.size(); ++i) {
    const JsonReader row(weights[i], r.item("weights", i));
    t.weights.push_back({row.type("type"), row.positive("gb_per_s"), row.positive_or_0("prompt_gops"),
                         row.positive_or_0("product_us"), row.positive_or_0("prompt_product_us")});
  }
  const auto& attention = r.list("attention");
  for (size_t i = 0; i < attention.size(); ++i) {
    const JsonReader row(attention[i], r.item("attention", i));
    t.attention.push_back({row.type("k"), row.type("v"), int(row.integer("head_dim")),
                           int(row.integer("heads_each")), row.positive("ns_per_key"),
                           row.positive_or_0("prompt_ns"), row.positive_or_0("append_ns"),
                           row.positive_or_0("start_us"), row.positive_or_0("window_start_us"),
                           row.positive_or_0("far_start_us"), row.positive_or_0("prompt_start_us")});
  }
  return t;
}

std::string machine_name(std::string_view backend, std::string_view device, int threads) {
  std::string text = fmt::format("{}-{}-t{}.json", backend, device, threads);
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  return text;
}

std::optional<double> attention_ns(const MachineTable& table, DType k, DType v, int head_dim, double heads,
                                   Figure figure) {
  if (const auto pair = measured(table, k, v, head_dim, heads, figure)) return pair;
  const auto keys = side(table, k, true, head_dim, heads, figure),
             values = side(table, v, false, head_dim, heads, figure);
  if (!keys || !values) return std::nullopt;
  return *keys + *values;
}

bool MachineTable::has_launches() const {
  return std::ranges::any_of(attention, [](const AttentionCost& row) { return row.start_us > 0; });
}

namespace {

Figure start_of(const LayerClass& c, int n_visible) {
  if (std::min(n_visible, c.window > 0 ? c.window : n_visible) <= kNearKeys) return &AttentionCost::start_us;
  return c.window > 0 ? &AttentionCost::window_start_us : &AttentionCost::far_start_us;
}

// Of a step of one row: the launches of products; of heads, cache and attention layer by layer; and
// embedding, last norm, choice of the token and turns of the heads.
std::string add_launches(const MachineTable& table, const ModelGeometry& g, const KvTypes& types,
                         int n_visible, StepCost& cost) {
  constexpr int kOthers = 4;
  for (const LayerClass& c : g.classes) {
    const bool sliding = c.name == "sliding";
    const DType k = types.k_of(sliding), v = types.v_of(sliding);
    const auto us = attention_ns(table, k, v, c.head_dim, heads_each(c), start_of(c, n_visible));
    if (!us) return missing_attention(k, v, c.head_dim);
    cost.starts += *us * 1e-6 * c.layers;
  }
  cost.starts += kOthers * table.op_us * 1e-6;
  return "";
}

}  // namespace

Prediction predict_step(const MachineTable& table, const ModelGeometry& g, const KvTypes& types,
                        int n_visible) {
  StepCost cost;
  for (const StepWeights& part : g.step) {
    const double rate = weight_rate(table, part.type);
    if (!(rate > 0)) return {std::nullopt, fmt::format("products with {} weights", name(part.type))};
    cost.weights += double(part.bytes) / (rate * 1e9);
    cost.starts += part.products * product_start(table, part.type);
  }
  for (const LayerClass& c : g.classes) {
    const bool sliding = c.name == "sliding";
    const DType k = types.k_of(sliding), v = types.v_of(sliding);
    const auto ns = attention_ns(table, k, v, c.head_dim, heads_each(c));
    if (!ns) return {std::nullopt, missing_attention(k, v, c.head_dim)};
    const int visible = c.window > 0 ? std::min(n_visible, c.window) : n_visible;
    cost.attention += *ns * 1e-9 * double(visible) * double(c.n_kv) * double(c.layers);
  }
  if (table.has_launches()) {
    if (std::string missing = add_launches(table, g, types, n_visible, cost); !missing.empty())
      return {std::nullopt, missing};
  } else {
    cost.starts += double(g.n_ops()) * table.op_us * 1e-6;
  }
  return {cost, ""};
}

namespace {

// What every row passes through, in steps; then the rest once, for the last row.
std::string add_prompt_weights(const MachineTable& table, const ModelGeometry& g, int n_prompt, int n_ubatch,
                               StepCost& cost) {
  for (const StepWeights& part : g.step) {
    const auto found = std::ranges::find(table.weights, part.type, &WeightCost::type);
    const double rate = weight_rate(table, part.type) * 1e9;
    const double ops = found != table.weights.end() ? found->prompt_gops * 1e9 : 0;
    if (!(rate > 0) || (part.prompt_values > 0 && !(ops > 0) && part.type != DType::f32))
      return fmt::format("products of many rows with {} weights", name(part.type));
    for (int done = 0; done < n_prompt; done += n_ubatch) {
      const double rows = std::min(n_ubatch, n_prompt - done), read = double(part.prompt_bytes) / rate;
      // A step of few rows is bound by reading the weights, as one row is.
      cost.weights += std::max(read, ops > 0 ? 2 * double(part.prompt_values) * rows / ops : read);
      if (found != table.weights.end()) cost.starts += part.prompt_products * found->prompt_product_us * 1e-6;
    }
    cost.starts += (part.products - part.prompt_products) * product_start(table, part.type);
    cost.weights += double(part.bytes - std::min(part.bytes, part.prompt_bytes)) / rate;
  }
  return "";
}

// Of a prompt in `steps` steps: attention of the layers that every row passes, norms, and the layers of the
// last row.
std::string add_prompt_launches(const MachineTable& table, const ModelGeometry& g, const KvTypes& types,
                                int n_visible, int steps, StepCost& cost) {
  for (const LayerClass& c : g.classes) {
    const bool sliding = c.name == "sliding";
    const DType k = types.k_of(sliding), v = types.v_of(sliding);
    const auto many = attention_ns(table, k, v, c.head_dim, heads_each(c), &AttentionCost::prompt_start_us),
               one = attention_ns(table, k, v, c.head_dim, heads_each(c), start_of(c, n_visible));
    if (!many || !one) return "prompts: " + missing_attention(k, v, c.head_dim);
    cost.starts += (*many * c.prompt_layers * steps + *one * (c.layers - c.prompt_layers)) * 1e-6;
  }
  cost.starts += table.op_us * 1e-6 * double(g.n_prompt_norms()) * steps;
  return "";
}

}  // namespace

Prediction predict_prompt(const MachineTable& table, const ModelGeometry& g, const KvTypes& types,
                          int n_prompt, int depth, int n_ubatch) {
  StepCost cost;
  if (!(table.value_ns > 0)) return {std::nullopt, "norms of many rows"};
  if (n_ubatch < 1) n_ubatch = std::max(1, n_prompt);  // an old table's row: not known
  if (std::string missing = add_prompt_weights(table, g, n_prompt, n_ubatch, cost); !missing.empty())
    return {std::nullopt, missing};
  for (const LayerClass& c : g.classes) {
    const bool sliding = c.name == "sliding";
    const DType k = types.k_of(sliding), v = types.v_of(sliding);
    const auto one = attention_ns(table, k, v, c.head_dim, heads_each(c)),
               row = attention_ns(table, k, v, c.head_dim, heads_each(c), &AttentionCost::prompt_ns),
               append = attention_ns(table, k, v, c.head_dim, heads_each(c), &AttentionCost::append_ns);
    if (!one || !row || !append) return {std::nullopt, "prompts: " + missing_attention(k, v, c.head_dim)};
    cost.attention +=
        *row * 1e-9 * keys_seen(n_prompt, depth, c.window) * double(c.n_kv) * double(c.prompt_layers);
    cost.attention += *one * 1e-9 * keys_seen(1, depth + n_prompt - 1, c.window) * double(c.n_kv) *
                      double(c.layers - c.prompt_layers);
    cost.rest += *append * 1e-9 * double(n_prompt) * double(c.n_kv) * double(c.owned);
  }
  const int steps = (n_prompt + n_ubatch - 1) / n_ubatch;
  if (table.has_launches()) {
    if (std::string missing = add_prompt_launches(table, g, types, depth + n_prompt, steps, cost);
        !missing.empty())
      return {std::nullopt, missing};
    cost.rest += table.value_ns * 1e-9 * double(g.prompt_normed()) * double(n_prompt);
  } else {
    cost.rest += table.value_ns * 1e-9 * double(g.prompt_elementwise()) * double(n_prompt);
    cost.starts += (double(g.n_prompt_ops()) * (steps - 1) + double(g.n_ops())) * table.op_us * 1e-6;
  }
  return {cost, ""};
}

}  // namespace kvasir::decide
