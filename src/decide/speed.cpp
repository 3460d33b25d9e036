#include "decide/speed.h"

#include "decide/json_reader.h"

namespace kvasir::decide {

using Json = nlohmann::ordered_json;

std::string to_json(const SpeedTable& t) {
  Json json = {{"schema", 1},
               {"kind", "speed"},
               {"fingerprint", t.fingerprint},
               {"model", t.model},
               {"rows", Json::array()}};
  const auto type = [](DType one) { return formats::require(one).name; };
  for (const SpeedRow& r : t.rows)
    json["rows"].push_back({{"backend", r.backend},
                            {"device", r.device},
                            {"k", type(r.types.k)},
                            {"v", type(r.types.v)},
                            {"k_sliding", type(r.types.k_of(true))},
                            {"v_sliding", type(r.types.v_of(true))},
                            {"depth", r.depth},
                            {"predicted", r.predicted},
                            {"measured", r.measured},
                            {"contended", r.contended},
                            {"date", r.date}});
  return json.dump(1);
}

SpeedTable speed_from_json(std::string_view text, std::string_view file) {
  const auto json = parse_json(text, file);
  const JsonReader r(json, std::string(file));
  if (r.text("kind") != "speed") fail(ErrorCode::kBadFile, "{}: field 'kind' is not 'speed'", file);
  SpeedTable t{r.text("fingerprint"), r.text("model"), {}};
  const auto& rows = r.list("rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    const JsonReader row(rows[i], r.item("rows", i));
    t.rows.push_back({row.text("backend"),
                      row.text("device"),
                      {row.type("k"), row.type("v"), row.type("k_sliding"), row.type("v_sliding")},
                      int(row.integer("depth")),
                      row.positive("predicted"),
                      row.positive("measured"),
                      row.flag("contended"),
                      row.text("date")});
  }
  return t;
}

void add_row(SpeedTable& table, const SpeedRow& row) {
  for (SpeedRow& old : table.rows)
    if (old.backend == row.backend && old.device == row.device && old.types == row.types &&
        old.depth == row.depth) {
      old = row;
      return;
    }
  table.rows.push_back(row);
}

}  // namespace kvasir::decide
