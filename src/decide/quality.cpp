#include "decide/quality.h"

#include <algorithm>

#include "decide/json_reader.h"

namespace kvasir::decide {

using Json = nlohmann::ordered_json;

std::string to_json(const QualityTable& t) {
  Json json = {{"schema", t.schema},   {"kind", "quality"},      {"fingerprint", t.fingerprint},
               {"model", t.model},     {"geometry", t.geometry}, {"weights", t.weights},
               {"rows", Json::array()}};
  const auto type = [](DType one) { return formats::require(one).name; };
  for (const QualityRow& r : t.rows)
    json["rows"].push_back({{"k", type(r.types.k)},
                            {"v", type(r.types.v)},
                            {"k_sliding", type(r.types.k_of(true))},
                            {"v_sliding", type(r.types.v_of(true))},
                            {"n_ctx", r.n_ctx},
                            {"n_tokens", r.n_tokens},
                            {"mean", r.mean},
                            {"median", r.median},
                            {"p999", r.p999},
                            {"same_top", r.same_top},
                            {"floor", r.floor},
                            {"ppl", r.ppl},
                            {"exact_share", r.exact_share},
                            {"decode", r.decode},
                            {"kernel_hash", r.kernel_hash},
                            {"date", r.date}});
  return json.dump(1);
}

QualityTable quality_from_json(std::string_view text, std::string_view file) {
  const auto json = parse_json(text, file);
  const JsonReader r(json, std::string(file));
  if (r.text("kind") != "quality") fail(ErrorCode::kBadFile, "{}: field 'kind' is not 'quality'", file);
  if (r.integer("schema") != kQualitySchema)
    fail(ErrorCode::kBadFile, "{}: field 'schema' is {}; this program reads {}", file, r.integer("schema"),
         kQualitySchema);
  QualityTable t;
  t.fingerprint = r.text("fingerprint");
  t.model = r.text("model");
  t.geometry = r.text("geometry");
  t.weights = r.text("weights");
  const auto& rows = r.list("rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    const JsonReader row(rows[i], r.item("rows", i));
    QualityRow q;
    q.types = {row.type("k"), row.type("v"), row.type("k_sliding"), row.type("v_sliding")};
    q.n_ctx = int(row.integer("n_ctx"));
    q.n_tokens = row.integer("n_tokens");
    q.mean = row.positive("mean");
    q.median = row.positive("median");
    q.p999 = row.positive("p999");
    q.same_top = row.positive("same_top");
    q.floor = row.positive("floor");
    q.ppl = row.positive("ppl");
    q.exact_share = row.positive("exact_share");
    q.decode = row.flag("decode");
    q.kernel_hash = row.text("kernel_hash");
    q.date = row.text("date");
    t.rows.push_back(q);
  }
  return t;
}

void add_row(QualityTable& table, const QualityRow& row) {
  for (QualityRow& old : table.rows)
    if (old.types == row.types && old.n_ctx == row.n_ctx && old.decode == row.decode) {
      // A quick look does not replace what the same kernels were measured at on more text.
      if (old.kernel_hash != row.kernel_hash || old.n_tokens <= row.n_tokens) old = row;
      return;
    }
  table.rows.push_back(row);
}

const QualityRow* find_quality(const QualityTable& table, const KvTypes& types) {
  const QualityRow *worst = nullptr, *most = nullptr;
  for (const QualityRow& row : table.rows) {
    if (row.types != types) continue;
    if (!most || row.n_tokens > most->n_tokens) most = &row;
    if (row.n_tokens >= kMinScored && (!worst || row.mean > worst->mean)) worst = &row;
  }
  return worst ? worst : most;
}

std::string match_geometry(const ModelGeometry& model) {
  for (const gguf::Geometry& known : gguf::geometries()) {
    const ModelGeometry g = published_geometry(known);
    const auto same = [](const LayerClass& a, const LayerClass& b) {
      return a.name == b.name && a.layers == b.layers && a.owned == b.owned && a.n_head == b.n_head &&
             a.n_kv == b.n_kv && a.head_dim == b.head_dim && a.window == b.window;
    };
    if (g.arch == model.arch && g.n_layer == model.n_layer && g.n_embd == model.n_embd &&
        g.n_vocab == model.n_vocab && std::ranges::equal(g.classes, model.classes, same))
      return g.name;
  }
  return "";
}

}  // namespace kvasir::decide
