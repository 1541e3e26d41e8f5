// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/chart.hpp"
#include "coterie/report/heat_map.hpp"
#include "coterie/report/html_sections.hpp"
#include "coterie/report/markup.hpp"
#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

/// The colour of each placement: two have their own, the others take turns.
std::vector<std::string> css_classes(const ReportData& data) {
  std::vector<std::string> classes;
  std::size_t others = 0;
  for (const PlacementReport& placement : data.placements) {
    if (placement.name == data.chosen) {
      classes.emplace_back("s-chosen");
    } else if (placement.name == data.baseline) {
      classes.emplace_back("s-baseline");
    } else {
      classes.push_back("s-" + std::to_string(others++ % 3 + 1));
    }
  }
  return classes;
}

/// A chart with a line a placement; `value_of` takes a placement's figures of one layer.
template <typename ValueOf>
LayerChart placement_chart(const ReportData& data, const ValueOf& value_of) {
  const std::size_t text = headline_text(data);
  const std::vector<std::string> classes = css_classes(data);
  LayerChart chart;
  for (const LayerReport& layer : data.layers) {
    chart.layers.push_back(std::to_string(layer.layer));
  }
  for (std::size_t p = 0; p < data.placements.size(); ++p) {
    Series series{data.placements[p].label, classes[p], {}, false};
    for (const auto& texts : data.placements[p].measured) {
      series.values.push_back(value_of(texts[text].figures));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

std::string replicas_chart_section(const ReportData& data) {
  LayerChart chart = placement_chart(data, [](const auto& figures) { return figures.replicas; });
  chart.title = "Devices per token in each layer";
  chart.unit = "devices per token";
  Series random{"by chance", "s-random", {}, true};
  Series bound{"no placement gets below", "s-bound", {}, true};
  for (const LayerReport& layer : data.layers) {
    random.values.push_back(layer.bounds.random);
    bound.values.push_back(layer.bounds.lower());
  }
  chart.series.push_back(std::move(random));
  chart.series.push_back(std::move(bound));
  return "<section><h2>Devices per token, layer by layer</h2><p class=\"soft\">On the " +
         escape(data.texts[headline_text(data)].name) + " text; lower is less to send.</p>" +
         chart_legend(chart) + chart_svg(chart) + "</section>\n";
}

std::string load_chart_section(const ReportData& data) {
  LayerChart chart =
      placement_chart(data, [](const auto& figures) { return figures.load_imbalance; });
  chart.title = "Load of the busiest device in each layer";
  chart.unit = "load of the busiest device / mean";
  chart.low = 1;
  if (data.load_cap) {
    chart.series.push_back({"cap, on the fitted text", "s-bound",
                            std::vector<double>(data.layers.size(), *data.load_cap), true});
  }
  return "<section><h2>Load of the busiest device, layer by layer</h2><p class=\"soft\">On the " +
         escape(data.texts[headline_text(data)].name) +
         " text; 1 means that all devices work equally much.</p>" + chart_legend(chart) +
         chart_svg(chart) + "</section>\n";
}

std::string heat_map_section(const ReportData& data) {
  const PlacementReport& before = placement_named(data, data.baseline);
  const PlacementReport& after = placement_named(data, data.chosen);
  std::string html =
      "<section><h2>Experts that are chosen together</h2><p class=\"soft\">Each square is a pair "
      "of experts; the stronger its colour, the more tokens of the fitted text chose both. A frame "
      "is a device: what lies inside costs one trip, what lies outside costs two. The placement "
      "only puts the experts in another order.</p>";
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    html += "<input class=\"picker\" type=\"radio\" name=\"layer\" id=\"l" + std::to_string(l) +
            "\"" + (l == 0 ? " checked" : "") + ">";
  }
  html += "<div class=\"picks\"><span class=\"soft\">Layer</span>";
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    html += "<label for=\"l" + std::to_string(l) + "\">" + std::to_string(data.layers[l].layer) +
            "</label>";
  }
  html += "</div>";
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    const LayerReport& layer = data.layers[l];
    const std::uint64_t full_count = full_colour_count(layer.pairs);
    html += "<div class=\"pane\" id=\"p" + std::to_string(l) + "\"><div class=\"pair\">";
    for (const PlacementReport* placement : {&before, &after}) {
      const DeviceOrder order = device_order(placement->layers[l]);
      const std::string share = fixed(100 * share_inside(layer.pairs, order), 0) + " %";
      const std::string label = "Layer " + std::to_string(layer.layer) + ", " + placement->label +
                                ": " + share + " of all pairs share a device";
      html += "<figure>" + heat_map_svg(layer.pairs, order, full_count, label) + "<figcaption><b>" +
              (placement == &before ? "Before: " : "After: ") + escape(placement->label) +
              ".</b> " + escape(share) +
              " of all chosen pairs share a device.</figcaption></figure>";
    }
    html += "</div></div>";
  }
  return html + "</section>\n";
}

}  // namespace coterie::report
