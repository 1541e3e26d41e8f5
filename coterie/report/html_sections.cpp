// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/html_sections.hpp"

#include <algorithm>

#include "coterie/report/markup.hpp"
#include "coterie/report/text_report.hpp"
#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

std::string tile(const std::string& what, const std::string& value, const std::string& meaning,
                 const std::string& css_class = "") {
  return "<div class=\"tile\"><span>" + escape(what) + "</span><b class=\"" + css_class + "\">" +
         escape(value) + "</b><small>" + escape(meaning) + "</small></div>";
}

std::string bytes_tile(const ReportData& data) {
  const PlacementReport& before = placement_named(data, data.baseline);
  const PlacementReport& after = placement_named(data, data.chosen);
  if (before.run && after.run && before.run->bytes_sent > 0) {
    return tile("Bytes sent, counted", human_bytes(after.run->bytes_sent),
                "instead of " + human_bytes(before.run->bytes_sent) + " for " +
                    grouped(after.run->num_tokens) + " tokens on " +
                    std::to_string(after.run->num_processes) + " processes");
  }
  const std::size_t text = headline_text(data);
  const std::uint64_t bytes_before = summarise(before, text).bytes_sent;
  const std::uint64_t bytes_after = summarise(after, text).bytes_sent;
  if (bytes_before == 0) {
    return {};
  }
  return tile("Bytes sent, predicted", human_bytes(bytes_after),
              "instead of " + human_bytes(bytes_before) + " for " +
                  grouped(data.texts[text].num_tokens) + " tokens");
}

std::string equality_tile(const ReportData& data) {
  const PlacementReport& chosen = placement_named(data, data.chosen);
  if (!chosen.run) {
    return {};
  }
  if (!chosen.run->bit_equal) {
    return tile("Results", "DIFFER", "processes and one process do not agree: do not use this",
                "bad");
  }
  return tile("Results", "bit-equal",
              std::to_string(chosen.run->num_processes) +
                  " processes give the same logits as one process, bit by bit",
              "good");
}

std::string cell(const std::string& value, bool first = false) {
  return (first ? "<td class=\"first\">" : "<td>") + escape(value) + "</td>";
}

std::string bytes_cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : human_bytes(bytes);
}

/// Counted bytes stand beside each other, or predicted ones; never one kind beside the other.
bool all_have_runs(const ReportData& data) {
  return std::all_of(data.placements.begin(), data.placements.end(),
                     [](const PlacementReport& placement) { return placement.run.has_value(); });
}

std::string table_head(const ReportData& data) {
  const std::string& text = data.texts[headline_text(data)].name;
  std::string html = "<thead><tr class=\"groups\"><th></th><th class=\"first\" colspan=\"" +
                     std::to_string(data.texts.size()) +
                     "\">Devices per token (C<sub>T</sub>)</th>"
                     "<th class=\"first\" colspan=\"3\">Busiest device over mean, " +
                     escape(text) +
                     "</th><th class=\"first\" colspan=\"2\">Run</th></tr><tr><th>Placement</th>";
  for (std::size_t t = 0; t < data.texts.size(); ++t) {
    html += (t == 0 ? "<th class=\"first\">" : "<th>") + escape(data.texts[t].name) + "</th>";
  }
  return html +
         "<th class=\"first\">load</th><th>worst layer</th><th>received</th>"
         "<th class=\"first\">" +
         (all_have_runs(data) ? "bytes sent" : "bytes, predicted") +
         "</th><th>result</th></tr></thead>";
}

std::string table_row(const ReportData& data, const PlacementReport& placement) {
  const std::size_t main = headline_text(data);
  const PlacementReport& baseline = placement_named(data, data.baseline);
  std::string html = placement.name == data.chosen ? "<tr class=\"chosen\">" : "<tr>";
  html += "<th>" + escape(placement.label) + "</th>";
  for (std::size_t t = 0; t < data.texts.size(); ++t) {
    const double before = summarise(baseline, t).replicas;
    const double after = summarise(placement, t).replicas;
    html += (t == 0 ? "<td class=\"first\">" : "<td>") + fixed(after);
    if (placement.name == data.chosen && before > 0) {
      html += (after <= before ? "<em>" : "<em class=\"bad\">") +
              escape(percent_change(before, after)) + "</em>";
    }
    html += "</td>";
  }
  const Summary summary = summarise(placement, main);
  const std::uint64_t bytes = all_have_runs(data) ? placement.run->bytes_sent : summary.bytes_sent;
  return html + cell(fixed(summary.load_imbalance), true) +
         cell(fixed(summary.worst_load_imbalance)) + cell(fixed(summary.receive_imbalance)) +
         cell(bytes_cell(bytes), true) + cell(equality_cell(placement)) + "</tr>";
}

std::string bound_row(const ReportData& data, const std::string& label, double value) {
  std::string html = "<tr class=\"bound\"><th>" + escape(label) + "</th>";
  for (std::size_t t = 0; t < data.texts.size(); ++t) {
    html += cell(t == headline_text(data) ? fixed(value) : "", t == 0);
  }
  return html + cell("", true) + cell("") + cell("") + cell("", true) + cell("") + "</tr>";
}

std::string layer_details(const ReportData& data, std::size_t l) {
  std::string html = "<details><summary>Layer " + std::to_string(data.layers[l].layer) +
                     "</summary><div class=\"scroll\"><table><thead><tr><th>Placement</th>"
                     "<th>text</th><th>devices per token</th><th>as the busiest sees it</th>"
                     "<th>load</th><th>received</th><th>bytes sent</th></tr></thead><tbody>";
  for (const PlacementReport& placement : data.placements) {
    for (std::size_t t = 0; t < data.texts.size(); ++t) {
      const Measured& measured = placement.measured[l][t];
      html += placement.name == data.chosen ? "<tr class=\"chosen\">" : "<tr>";
      html += "<th>" + escape(t == 0 ? placement.label : "") + "</th>" + cell(data.texts[t].name) +
              cell(fixed(measured.figures.replicas)) +
              cell(fixed(measured.figures.bottleneck_replicas)) +
              cell(fixed(measured.figures.load_imbalance)) +
              cell(fixed(measured.figures.receive_imbalance)) +
              cell(bytes_cell(measured.bytes_sent)) + "</tr>";
    }
  }
  const routing::ReplicaBounds& bounds = data.layers[l].bounds;
  return html + "</tbody></table></div><p class=\"soft\">By chance " + fixed(bounds.random) +
         " devices; no placement gets below " + fixed(bounds.lower()) + " (star bound " +
         fixed(bounds.star) + ", trivial bound " + fixed(bounds.trivial) + ").</p></details>";
}

}  // namespace

std::string lead_section(const ReportData& data) {
  const std::size_t text = headline_text(data);
  const Summary before = summarise(placement_named(data, data.baseline), text);
  const Summary after = summarise(placement_named(data, data.chosen), text);
  std::string html = "<header><h1>" + escape(data.title) + "</h1><p class=\"lead\">" +
                     escape(headline(data)) + "</p></header>\n<div class=\"tiles\">";
  html += tile("Devices per token", fixed(after.replicas),
               "instead of " + fixed(before.replicas) + " (" +
                   percent_change(before.replicas, after.replicas) + ") on " +
                   data.texts[text].name + " text");
  html += tile(
      "Busiest device", fixed(after.worst_load_imbalance) + "×",
      "the mean load, in the worst layer; checkpoint order: " + fixed(before.worst_load_imbalance) +
          "×" + (data.load_cap ? "; cap on the fitted text " + fixed(*data.load_cap) : ""));
  return html + bytes_tile(data) + equality_tile(data) + "</div>\n";
}

std::string table_section(const ReportData& data) {
  std::string html = "<section><h2>All layers together</h2><p class=\"soft\">" +
                     std::to_string(data.layers.size()) + " MoE layers, " +
                     std::to_string(data.num_experts) + " experts each, " +
                     std::to_string(data.top_k) + " for every token, on " +
                     std::to_string(data.num_devices) +
                     " devices. Less is better in every column.</p><div class=\"scroll\"><table>" +
                     table_head(data) + "<tbody>";
  for (const PlacementReport& placement : data.placements) {
    html += table_row(data, placement);
  }
  const routing::ReplicaBounds bounds = mean_bounds(data);
  html += bound_row(data, "by chance", bounds.random);
  html += bound_row(data, "no placement gets below", bounds.lower());
  html += "</tbody></table></div>";
  for (const PlacementReport& placement : data.placements) {
    if (!placement.description.empty()) {
      html += "<p class=\"soft\"><b>" + escape(placement.label) + ":</b> " +
              escape(placement.description) + "</p>";
    }
  }
  return html + "</section>\n";
}

std::string layers_section(const ReportData& data) {
  std::string html =
      "<section><h2>Every figure</h2><p class=\"soft\">Each layer, placement and text.</p>";
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    html += layer_details(data, l);
  }
  return html + "</section>\n";
}

std::string explanation_section(const ReportData& data) {
  const std::string k = std::to_string(data.top_k);
  const std::string n = std::to_string(data.num_devices);
  std::string html =
      "<section><h2>What this means</h2><p>In a mixture-of-experts model a small network, the "
      "router, sends every token to " +
      k + " of " + std::to_string(data.num_experts) +
      " experts in each layer. When the experts are spread over " + n +
      " devices, the token has to travel to every device that holds one of its experts, and the "
      "results have to travel back. On real machines this traffic often takes longer than the "
      "computing.</p><p><b>Devices per token (C<sub>T</sub>)</b> is how many devices a token "
      "visits on average. Which experts a token needs is not random: some are chosen together "
      "again and again. If such experts share a device, the token goes there once for all of "
      "them. So where experts live decides how much is sent, though it changes no weight and no "
      "result.</p><p><b>Load</b> is the work of the busiest device over the mean. Everyone waits "
      "for the busiest, so a placement that piles popular experts on one device saves traffic "
      "and loses time.";
  if (data.load_cap) {
    html += " Here the load on the fitted text was kept at or below " + fixed(*data.load_cap) + ".";
  }
  return html +
         " <b>Received</b> is the same for the rows that arrive.</p><p><b>Held-out text</b> was "
         "not used to find the placement: its figures tell what new text of the same kind will "
         "cost. The columns of single kinds of text show how the placement carries over.</p>"
         "<p><b>Algorithm 1</b> is the greedy method of the Occult paper (ICML 2025). <b>By "
         "chance</b> is what random experts would give. <b>No placement gets below</b> is a proven "
         "bound for this text that ignores load; it may be out of reach.</p></section>\n";
}

std::string provenance_section(const ReportData& data) {
  std::string html = "<section><h2>Where this comes from</h2><dl>";
  for (const auto& [what, value] : data.provenance) {
    html += "<dt>" + escape(what) + "</dt><dd>" + escape(value) + "</dd>";
  }
  for (const TextSample& text : data.texts) {
    html +=
        "<dt>Text: " + escape(text.name) + "</dt><dd>" + grouped(text.num_tokens) + " tokens</dd>";
  }
  html += "</dl>";
  if (!data.notes.empty()) {
    html += "<ul class=\"notes\">";
    for (const std::string& note : data.notes) {
      html += "<li>" + escape(note) + "</li>";
    }
    html += "</ul>";
  }
  return html + "</section>\n";
}

}  // namespace coterie::report
