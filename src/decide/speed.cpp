#include "decide/speed.h"

#include "decide/json_reader.h"

namespace kvasir::decide {

using Json = nlohmann::ordered_json;

std::string to_json(const SpeedTable& t) {
  Json json = {{"schema", 1},
               {"kind", "speed"},
               {"fingerprint", t.fingerprint},
               {"model", t.model},
               {"geometry", t.geometry},
               {"weights", t.weights},
               {"rows", Json::array()}};
  const auto type = [](DType one) { return formats::require(one).name; };
  for (const SpeedRow& r : t.rows)
    json["rows"].push_back({{"backend", r.backend},
                            {"device", r.device},
                            {"k", type(r.types.k)},
                            {"v", type(r.types.v)},
                            {"k_sliding", type(r.types.k_of(true))},
                            {"v_sliding", type(r.types.v_of(true))},
                            {"n_prompt", r.n_prompt},
                            {"n_ubatch", r.n_ubatch},
                            {"depth", r.depth},
                            {"predicted", r.predicted},
                            {"measured", r.measured},
                            {"contended", r.contended},
                            {"date", r.date},
                            {"kernel_hash", r.kernel_hash}});
  return json.dump(1);
}

SpeedTable speed_from_json(std::string_view text, std::string_view file) {
  const auto json = parse_json(text, file);
  const JsonReader r(json, std::string(file));
  if (r.text("kind") != "speed") fail(ErrorCode::kBadFile, "{}: field 'kind' is not 'speed'", file);
  const auto text_or_none = [](const JsonReader& from, const char* key) {
    return from.has(key) ? from.text(key) : std::string();
  };
  SpeedTable t{r.text("fingerprint"), r.text("model"), text_or_none(r, "geometry"), text_or_none(r, "weights"),
               {}};
  const auto& rows = r.list("rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    const JsonReader row(rows[i], r.item("rows", i));
    t.rows.push_back({row.text("backend"),
                      row.text("device"),
                      {row.type("k"), row.type("v"), row.type("k_sliding"), row.type("v_sliding")},
                      row.has("n_prompt") ? row.whole("n_prompt") : 0,
                      row.has("n_ubatch") ? row.whole("n_ubatch") : 0,
                      int(row.integer("depth")),
                      row.positive("predicted"),
                      row.positive("measured"),
                      row.flag("contended"),
                      row.text("date"),
                      text_or_none(row, "kernel_hash")});
  }
  return t;
}

std::optional<double> predict_again(const std::vector<MachineTable>& machines, const SpeedTable& table,
                                    const SpeedRow& row) {
  const gguf::Geometry* source = gguf::find_geometry(table.geometry);
  const MachineTable* best = nullptr;
  for (const MachineTable& t : machines)
    if (t.backend == row.backend && t.device == row.device && t.kernel_hash == row.kernel_hash &&
        (!best || t.date > best->date))
      best = &t;
  if (!source || !best) return std::nullopt;
  const ModelGeometry g = published_geometry(*source, table.weights.empty() ? "q8_0" : table.weights);
  const Prediction p = row.n_prompt > 0
                           ? predict_prompt(*best, g, row.types, row.n_prompt, row.depth, row.n_ubatch)
                           : predict_step(*best, g, row.types, row.depth);
  if (!p.cost) return std::nullopt;
  return (row.n_prompt > 0 ? row.n_prompt : 1) / p.cost->total();
}

void add_row(SpeedTable& table, const SpeedRow& row) {
  for (SpeedRow& old : table.rows)
    if (old.backend == row.backend && old.device == row.device && old.types == row.types &&
        old.n_prompt == row.n_prompt && old.depth == row.depth) {
      old = row;
      return;
    }
  table.rows.push_back(row);
}

}  // namespace kvasir::decide
