// Line and scatter plots as SVG text. Colours are CSS classes of the page (s0, s1, ...), so that a page can
// be light or dark.
#pragma once
#include <string>
#include <vector>

namespace kvasir::decide {

struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;
  int color = 0;
  bool line = true;  // else dots, each named by `names`
  std::vector<std::string> names;
};

struct Tick {
  double at;
  std::string label;
};

struct Plot {
  std::string x_title, y_title;
  bool log_x = false, log_y = false;
  std::vector<Tick> x_ticks, y_ticks;
  double x_min = 0, x_max = 1, y_min = 0, y_max = 1;
  std::vector<Series> series;
  std::vector<std::pair<double, std::string>> lines;  // horizontal, dashed, with a label
  bool diagonal = false;
};

std::string plot_svg(const Plot& plot);
// Powers (of 2 or of 10) that cover a range, as ticks.
std::vector<Tick> power_ticks(double low, double high, int base, std::string (*label)(double));
std::string escaped(const std::string& text);  // for HTML

}  // namespace kvasir::decide
