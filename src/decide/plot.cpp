#include "decide/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvasir::decide {
namespace {

constexpr double kWidth = 480, kHeight = 330, kLeft = 100, kRight = 14, kTop = 12, kBottom = 52;
constexpr double kRow = 22, kColumn = 125;  // of the legend below the plot

class Scale {
 public:
  Scale(double low, double high, bool log, double from, double to)
      : low_(log ? std::log(low) : low),
        high_(log ? std::log(high) : high),
        log_(log),
        from_(from),
        to_(to) {}
  double operator()(double value) const {
    const double v = log_ ? std::log(std::max(value, 1e-300)) : value;
    return from_ + (std::clamp(v, low_, high_) - low_) / std::max(high_ - low_, 1e-12) * (to_ - from_);
  }

 private:
  double low_, high_;
  bool log_;
  double from_, to_;
};

std::string text(double x, double y, const char* anchor, const std::string& what, const char* cls = "t") {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", cls, x, y,
                     anchor, escaped(what));
}

std::string line(double x0, double y0, double x1, double y1, const char* cls) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", cls,
                     x0, y0, x1, y1);
}

std::string series_svg(const Series& s, const Scale& x, const Scale& y) {
  std::string out;
  if (s.line) {
    std::string points;
    for (const auto& [px, py] : s.points) points += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
    return fmt::format("<polyline class=\"l s{}\" points=\"{}\"><title>{}</title></polyline>\n", s.color,
                       points, escaped(s.label));
  }
  struct Box {
    double left, top, right, bottom;
  };
  std::vector<Box> taken;
  for (size_t i = 0; i < s.points.size(); ++i) {
    const auto [px, py] = s.points[i];
    const std::string name = i < s.names.size() ? s.names[i] : s.label;
    out += fmt::format(
        "<circle class=\"d s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"><title>{}</title></circle>\n", s.color,
        x(px), y(py), escaped(name));
    if (s.names.empty()) continue;
    // Beside the point, right or left, or farther up or down: names do not lie on each other.
    const double width = 7.5 * double(name.size()), height = 14;
    const bool prefer_left = x(px) > kWidth - 140;
    for (int attempt = 0;; ++attempt) {
      const bool left = (attempt % 2 == 1) != prefer_left;
      const int rows = (attempt / 2 + 1) / 2 * (attempt / 2 % 2 ? 1 : -1);
      const double at = y(py) + 4 + rows * height, from = x(px) + (left ? -8 - width : 8);
      const Box box{from, at - height + 2, from + width, at + 2};
      const bool free = std::ranges::none_of(taken, [&](const Box& b) {
        return box.left < b.right && b.left < box.right && box.top < b.bottom && b.top < box.bottom;
      });
      const bool inside = box.left > kLeft && box.right < kWidth + kRight && box.top > 0 && box.bottom < kHeight - kBottom;
      if ((!free || !inside) && attempt < 24) continue;
      taken.push_back(box);
      out += text(x(px) + (left ? -8 : 8), at, left ? "end" : "start", name, "n");
      break;
    }
  }
  return out;
}

std::string legend(const Plot& p, int& rows) {
  std::string out;
  int n = 0;
  const int columns = int((kWidth - kLeft) / kColumn);
  for (const Series& s : p.series) {
    if (s.label.empty()) continue;
    const double x = kLeft + (n % columns) * kColumn, y = kHeight + 10 + (n / columns) * kRow;
    out += s.line ? fmt::format(
                        "<line class=\"l s{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                        s.color, x, y - 4, x + 18, y - 4)
                  : fmt::format("<circle class=\"d s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>\n", s.color,
                                x + 9, y - 4);
    out += text(x + 24, y, "start", s.label);
    ++n;
  }
  rows = (n + columns - 1) / columns;
  return out;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::vector<Tick> power_ticks(double low, double high, int base, std::string (*label)(double)) {
  std::vector<Tick> ticks;
  for (double at = std::pow(base, std::ceil(std::log(low) / std::log(base) - 1e-9)); at <= high * (1 + 1e-9);
       at *= base)
    ticks.push_back({at, label(at)});
  return ticks;
}

std::string plot_svg(const Plot& p) {
  const Scale x(p.x_min, p.x_max, p.log_x, kLeft, kWidth - kRight),
      y(p.y_min, p.y_max, p.log_y, kHeight - kBottom, kTop);
  std::string body;
  for (const Tick& tick : p.x_ticks)
    body += line(x(tick.at), kTop, x(tick.at), kHeight - kBottom, "g") +
            text(x(tick.at), kHeight - kBottom + 18, "middle", tick.label);
  for (const Tick& tick : p.y_ticks)
    body += line(kLeft, y(tick.at), kWidth - kRight, y(tick.at), "g") +
            text(kLeft - 6, y(tick.at) + 4, "end", tick.label);
  if (p.diagonal) body += line(x(p.x_min), y(p.x_min), x(p.x_max), y(p.x_max), "b");
  for (const auto& [at, label] : p.lines)
    if (at >= p.y_min && at <= p.y_max)
      body +=
          line(kLeft, y(at), kWidth - kRight, y(at), "b") + text(kLeft + 6, y(at) - 5, "start", label, "bt");
  for (const Series& s : p.series) body += series_svg(s, x, y);
  body += text((kLeft + kWidth) / 2, kHeight - 10, "middle", p.x_title);
  body += fmt::format(
      "<text class=\"t\" transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kHeight - kBottom) / 2, escaped(p.y_title));
  int rows = 0;
  body += legend(p, rows);
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n", kWidth,
                     kHeight + rows * kRow, escaped(p.y_title + " against " + p.x_title), body);
}

}  // namespace kvasir::decide
