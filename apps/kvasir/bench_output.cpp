// Rows of `kvasir bench` in llama-bench's names and columns.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench.h"
#include "formats/format.h"
#include "version.h"

namespace kvasir::app {
namespace {

using Json = nlohmann::ordered_json;

std::string kv_name(DType type) { return std::string(formats::require(type).name); }

Json to_json(const BenchRow& row) {
  Json samples_ns = Json::array(), samples_ts = Json::array();
  for (double seconds : row.samples_s) {
    samples_ns.push_back(uint64_t(seconds * 1e9));
    samples_ts.push_back(row.n_tokens() / seconds);
  }
  Json json = {{"build_commit", commit()},
               {"build_number", 0},
               {"cpu_info", row.cpu},
               {"gpu_info", row.gpu},
               {"backends", row.backend},
               {"model_filename", row.model_path},
               {"model_type", row.model_type},
               {"model_size", row.model_size},
               {"model_n_params", row.n_params},
               {"n_batch", row.setup.n_batch},
               {"n_ubatch", row.setup.n_ubatch},
               {"n_threads", row.n_threads},
               {"type_k", kv_name(row.setup.kv.k)},
               {"type_v", kv_name(row.setup.kv.v)},
               {"n_gpu_layers", row.gpu.empty() ? 0 : 99},
               {"flash_attn", row.setup.flash_attention},
               {"n_prompt", row.test.n_prompt},
               {"n_gen", row.test.n_gen},
               {"n_depth", row.test.n_depth},
               {"test_time", row.test_time}};
  json["avg_ns"] = uint64_t(row.mean_s() * 1e9);
  json["stddev_ns"] = uint64_t(row.stddev_s() * 1e9);
  json["avg_ts"] = row.mean_ts();
  json["stddev_ts"] = row.stddev_ts();
  json["samples_ns"] = samples_ns;
  json["samples_ts"] = samples_ts;
  json["median_ts"] = row.median_ts();
  json["gb_per_s"] = row.gb_per_s();
  json["gops"] = row.gops();
  json["roofline_share"] = row.roofline_share() > 0 ? Json(row.roofline_share()) : Json(nullptr);
  json["roofline_read_gb_per_s"] = row.roofline.read_gb_s;
  json["roofline_int8_gops"] = row.roofline.int8_gops;
  json["predicted_ts"] = row.predicted_ts > 0 ? Json(row.predicted_ts) : Json(nullptr);
  json["prediction_error"] = row.predicted_ts > 0 ? Json(row.prediction_error()) : Json(nullptr);
  json.update(row.evidence);
  json["isa"] = row.isa;
  json["kernel_hash"] = row.kernel_hash;
  json["load"] = row.load;
  json["foreign_load"] = row.foreign;
  json["contended"] = row.contended();
  return json;
}

class JsonWriter : public BenchWriter {
 public:
  void begin() override { print("["); }
  void row(const BenchRow& row) override {
    print((first_ ? "\n" : ",\n") + to_json(row).dump(2));
    flush_out();
    first_ = false;
  }
  void end() override { print("\n]\n"); }

 private:
  bool first_ = true;
};

class JsonLinesWriter : public BenchWriter {
 public:
  void row(const BenchRow& row) override {
    print(to_json(row).dump() + "\n");
    flush_out();
  }
};

class CsvWriter : public BenchWriter {
 public:
  void row(const BenchRow& row) override {
    std::string names, values;
    const Json json = to_json(row);
    for (const auto& [key, value] : json.items()) {
      if (value.is_array()) continue;
      names += (names.empty() ? "" : ",") + key;
      values +=
          (values.empty() ? "" : ",") + quoted(value.is_string() ? value.get<std::string>() : value.dump());
    }
    if (first_) print(names + "\n");
    first_ = false;
    print(values + "\n");
    flush_out();
  }

 private:
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  }
  bool first_ = true;
};

struct Column {
  std::string title;
  int width;  // negative: left-aligned
  std::function<std::string(const BenchRow&)> text;
};

// Columns that appear only when their parameter varies, as llama-bench does.
std::vector<Column> varied_columns(const std::vector<std::string>& varied) {
  const std::vector<std::pair<std::string, Column>> known = {
      {"batch-size", {"n_batch", 7, [](const BenchRow& row) { return std::to_string(row.setup.n_batch); }}},
      {"ubatch-size",
       {"n_ubatch", 8, [](const BenchRow& row) { return std::to_string(row.setup.n_ubatch); }}},
      {"cache-type-k", {"type_k", 6, [](const BenchRow& row) { return kv_name(row.setup.kv.k); }}},
      {"cache-type-v", {"type_v", 6, [](const BenchRow& row) { return kv_name(row.setup.kv.v); }}},
      {"flash-attn", {"fa", 2, [](const BenchRow& row) { return row.setup.flash_attention ? "1" : "0"; }}},
  };
  std::vector<Column> columns;
  for (const auto& [name, column] : known)
    if (std::find(varied.begin(), varied.end(), name) != varied.end()) columns.push_back(column);
  return columns;
}

class MarkdownWriter : public BenchWriter {
 public:
  explicit MarkdownWriter(const std::vector<std::string>& varied) {
    columns_ = {{"model", -26, [](const BenchRow& row) { return row.model_type; }},
                {"size", 10, [](const BenchRow& row) { return size_text(double(row.model_size)); }},
                {"params", 10, [](const BenchRow& row) { return count_text(double(row.n_params)); }},
                {"backend", -7, [](const BenchRow& row) { return row.backend; }},
                {"threads", 7, [](const BenchRow& row) { return std::to_string(row.n_threads); }}};
    for (Column& column : varied_columns(varied)) columns_.push_back(std::move(column));
    const std::vector<Column> figures = {
        {"test", 15, [](const BenchRow& row) { return row.name(); }},
        {"t/s", 18,
         [](const BenchRow& row) { return fmt::format("{:.2f} ± {:.2f}", row.mean_ts(), row.stddev_ts()); }},
        {"median t/s", 10, [](const BenchRow& row) { return fmt::format("{:.2f}", row.median_ts()); }},
        {"GB/s", 7, [](const BenchRow& row) { return fmt::format("{:.2f}", row.gb_per_s()); }},
        {"Gop/s", 8, [](const BenchRow& row) { return fmt::format("{:.1f}", row.gops()); }},
        {"of peak", 12, [](const BenchRow& row) { return share(row); }},
        {"predicted", 15, [](const BenchRow& row) { return predicted(row); }},
        {"load", -16, [](const BenchRow& row) {
           return fmt::format("{:.2f}{}", row.load, row.contended() ? " contended" : "");
         }}};
    columns_.insert(columns_.end(), figures.begin(), figures.end());
  }

  void row(const BenchRow& row) override {
    if (first_) print_head();
    std::string line = "|";
    for (const Column& column : columns_) line += " " + padded(column.text(row), column.width) + " |";
    print(line + "\n");
    flush_out();
    last_ = row.roofline;
    if (!row.warning.empty()) warning_ = row.warning;
  }
  void end() override {
    if (!first_)
      print(fmt::format("\nbuild: {}; peaks measured in this run: {:.1f} GB/s read, {:.0f} int8 Gop/s\n",
                        commit(), last_.read_gb_s, last_.int8_gops));
    if (!warning_.empty()) print(warning_ + "\n");
  }

 private:
  static std::string share(const BenchRow& row) {
    if (row.roofline_share() <= 0) return "-";
    return fmt::format("{:.0f} % {}", 100 * row.roofline_share(), row.test.n_gen == 0 ? "int8" : "read");
  }
  static std::string predicted(const BenchRow& row) {
    if (row.predicted_ts <= 0) return "-";
    return fmt::format("{:.2f} ({:+.0f} %)", row.predicted_ts, 100 * row.prediction_error());
  }
  static std::string padded(const std::string& text, int width) {
    size_t shown = 0;  // characters, not bytes: "±" has two bytes
    for (char c : text) shown += (c & 0xC0) != 0x80;
    const std::string fill(size_t(std::abs(width)) > shown ? size_t(std::abs(width)) - shown : 0, ' ');
    return width < 0 ? text + fill : fill + text;
  }
  void print_head() {
    std::string names = "|", rule = "|";
    for (const Column& column : columns_) {
      const size_t width = std::max(size_t(std::abs(column.width)), column.title.size());
      names += " " + padded(column.title, column.width) + " |";
      rule += " " + std::string(width - 1, '-') + (column.width < 0 ? "- |" : ": |");
    }
    print(names + "\n" + rule + "\n");
    first_ = false;
  }

  std::vector<Column> columns_;
  cpu::Roofline last_;
  std::string warning_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<BenchWriter> make_bench_writer(const std::string& format,
                                               const std::vector<std::string>& varied) {
  if (format == "json") return std::make_unique<JsonWriter>();
  if (format == "jsonl") return std::make_unique<JsonLinesWriter>();
  if (format == "csv") return std::make_unique<CsvWriter>();
  return std::make_unique<MarkdownWriter>(varied);
}

}  // namespace kvasir::app
