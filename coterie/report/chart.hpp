// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace coterie::report {

/// One line of a chart over layers.
struct Series {
  std::string label;
  std::string css_class;       ///< gives the colour: "s-chosen", "s-baseline", "s-1", ...
  std::vector<double> values;  ///< one a layer
  bool dashed = false;         ///< a bound or expectation rather than a placement
};

/// A chart whose horizontal axis is the layer.
struct LayerChart {
  std::string title;                ///< read out by screen readers
  std::string unit;                 ///< above the vertical axis
  std::vector<std::string> layers;  ///< names on the horizontal axis
  std::vector<Series> series;
  double low = 0;  ///< lower end of the vertical axis
};

/// SVG of the chart, with the value of every point as its tooltip.
std::string chart_svg(const LayerChart& chart);

/// HTML list that explains the chart's lines.
std::string chart_legend(const LayerChart& chart);

}  // namespace coterie::report
