// A decision as text and as JSON (field names: docs/decisions.md).
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "decide/decision.h"

namespace kvasir::decide {

struct Report {
  ModelGeometry geometry;
  std::string source;  // "gemma.gguf", "published geometry, q8_0 weights"
  Request request;
  std::vector<Row> rows;
  std::optional<MachineTable> machine;  // of the host, for plots
};

nlohmann::ordered_json report_json(const Report& report);
std::string report_text(const Report& report);

// Parts that pages share.
int shown_context(const Report& report);  // that the decision is about: asked for, or the host's
std::string model_line(const ModelGeometry& geometry);
std::string number_text(double value, int digits);  // significant digits
std::string context_text(int n_ctx);                // "32k", "1000"

}  // namespace kvasir::decide
