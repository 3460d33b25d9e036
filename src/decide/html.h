// A decision as one page that needs nothing else: the matrix and four plots as inline SVG, light and dark.
#pragma once
#include <string>

#include "decide/explain.h"
#include "decide/speed.h"

namespace kvasir::decide {

// `quality`, `speed`: what was measured on this model; nullptr: nothing.
std::string report_html(const Report& report, const QualityTable* quality, const SpeedTable* speed);

}  // namespace kvasir::decide
