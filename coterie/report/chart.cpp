// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/chart.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/report/markup.hpp"
#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 310;
constexpr double kLeft = 44;
constexpr double kRight = 14;
constexpr double kTop = 30;
constexpr double kBottom = 44;

/// A step of 1, 2 or 5 times a power of ten that cuts the range into about five.
double nice_step(double range) {
  const double rough = std::max(range, 1e-9) / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double ratio = rough / power;
  return power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
}

/// Maps layers and values to places in the drawing.
class Scale {
 public:
  explicit Scale(const LayerChart& chart) : low_(chart.low), columns_(chart.layers.size()) {
    double high = low_;
    for (const Series& series : chart.series) {
      for (const double value : series.values) {
        high = std::isfinite(value) ? std::max(high, value) : high;
      }
    }
    step_ = nice_step((high - low_) * 1.05);
    high_ = low_ + step_ * std::max(1.0, std::ceil((high - low_) / step_ - 1e-9));
  }

  [[nodiscard]] double x(std::size_t layer) const {
    const double width = (kWidth - kLeft - kRight) / static_cast<double>(columns_);
    return kLeft + width * (static_cast<double>(layer) + 0.5);
  }
  [[nodiscard]] double y(double value) const {
    const double clamped = std::isfinite(value) ? std::clamp(value, low_, high_) : low_;
    return kHeight - kBottom - (kHeight - kTop - kBottom) * (clamped - low_) / (high_ - low_);
  }
  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> ticks;
    for (int i = 0; low_ + i * step_ <= high_ + step_ * 1e-6; ++i) {
      ticks.push_back(low_ + i * step_);
    }
    return ticks;
  }
  [[nodiscard]] int digits() const { return step_ >= 0.999 ? 0 : step_ >= 0.0999 ? 1 : 2; }

 private:
  double low_;
  double high_ = 1;
  double step_ = 1;
  std::size_t columns_;
};

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor +
         "\">" + escape(text) + "</text>";
}

std::string axes(const LayerChart& chart, const Scale& scale) {
  std::string svg;
  for (const double tick : scale.ticks()) {
    const std::string y = fixed(scale.y(tick), 1);
    svg += "<line class=\"grid\" x1=\"" + fixed(kLeft, 0) + "\" x2=\"" + fixed(kWidth - kRight, 0) +
           "\" y1=\"" + y + "\" y2=\"" + y + "\"/>" +
           text_at(kLeft - 8, scale.y(tick) + 4.5, "end", fixed(tick, scale.digits()));
  }
  const std::size_t every = (chart.layers.size() + 11) / 12;
  for (std::size_t l = 0; l < chart.layers.size(); l += every) {
    svg += text_at(scale.x(l), kHeight - kBottom + 19, "middle", chart.layers[l]);
  }
  svg += text_at((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", "MoE layer");
  svg += text_at(4, 15, "start", chart.unit);
  return svg;
}

std::string line_of(const LayerChart& chart, const Series& series, const Scale& scale) {
  std::string points;
  std::string dots;
  for (std::size_t l = 0; l < series.values.size(); ++l) {
    const std::string x = fixed(scale.x(l), 1);
    const std::string y = fixed(scale.y(series.values[l]), 1);
    points += (l == 0 ? "" : " ") + x + "," + y;
    if (!series.dashed) {
      dots += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"4.5\"><title>" +
              escape(series.label + ", layer " + chart.layers[l] + ": " + fixed(series.values[l])) +
              "</title></circle>";
    }
  }
  if (series.dashed && series.values.size() == 1) {  // a single point has no line
    const std::string y = fixed(scale.y(series.values[0]), 1);
    points = fixed(kLeft, 1) + "," + y + " " + fixed(kWidth - kRight, 1) + "," + y;
  }
  return "<g class=\"" + series.css_class + (series.dashed ? " dashed" : "") +
         "\"><polyline points=\"" + points + "\"/>" + dots + "</g>";
}

}  // namespace

std::string chart_svg(const LayerChart& chart) {
  const Scale scale(chart);
  std::string svg = "<div class=\"scroll\"><svg class=\"chart\" role=\"img\" viewBox=\"0 0 " +
                    fixed(kWidth, 0) + " " + fixed(kHeight, 0) + "\" aria-label=\"" +
                    escape(chart.title) + "\">" + axes(chart, scale);
  for (const Series& series : chart.series) {
    svg += line_of(chart, series, scale);
  }
  return svg + "</svg></div>";
}

std::string chart_legend(const LayerChart& chart) {
  std::string html = "<ul class=\"legend\">";
  for (const Series& series : chart.series) {
    html += "<li class=\"" + series.css_class + (series.dashed ? " dashed" : "") + "\"><i></i>" +
            escape(series.label) + "</li>";
  }
  return html + "</ul>";
}

}  // namespace coterie::report
