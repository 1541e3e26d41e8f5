// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/text_report.hpp"

#include <array>
#include <charconv>

#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

std::string scientific(double value) {
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific, 1);
  return {buffer.data(), end.ptr};
}

std::string bytes_cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : human_bytes(bytes);
}

TextTable replicas_table(const ReportData& data) {
  const std::size_t main = headline_text(data);
  std::vector<std::string> columns = {"C_T on text"};
  for (const TextSample& text : data.texts) {
    columns.push_back(text.name);
  }
  TextTable table(columns);
  for (const PlacementReport& placement : data.placements) {
    std::vector<std::string> cells = {placement.label};
    for (std::size_t t = 0; t < data.texts.size(); ++t) {
      cells.push_back(fixed(summarise(placement, t).replicas));
    }
    table.add_row(cells);
  }
  table.add_rule();
  const routing::ReplicaBounds bounds = mean_bounds(data);
  const auto add_bound = [&](const std::string& label, double value) {
    std::vector<std::string> cells(data.texts.size() + 1);
    cells[0] = label;
    cells[1 + main] = fixed(value);
    table.add_row(cells);
  };
  add_bound("by chance", bounds.random);
  add_bound("no placement below", bounds.lower());
  return table;
}

TextTable device_table(const ReportData& data) {
  TextTable table({"", "load", "load, worst layer", "rows received", "C_T as the busiest sees it",
                   "bytes sent"});
  for (const PlacementReport& placement : data.placements) {
    const Summary summary = summarise(placement, headline_text(data));
    table.add_row({placement.label, fixed(summary.load_imbalance),
                   fixed(summary.worst_load_imbalance), fixed(summary.receive_imbalance),
                   fixed(summary.bottleneck_replicas), bytes_cell(summary.bytes_sent)});
  }
  return table;
}

TextTable layer_table(const ReportData& data) {
  const std::size_t main = headline_text(data);
  std::vector<std::string> columns = {"layer"};
  for (const PlacementReport& placement : data.placements) {
    columns.push_back(placement.label);
    columns.push_back("load");
  }
  columns.insert(columns.end(), {"by chance", "not below"});
  TextTable table(columns);
  for (std::size_t l = 0; l < data.layers.size(); ++l) {
    std::vector<std::string> cells = {std::to_string(data.layers[l].layer)};
    for (const PlacementReport& placement : data.placements) {
      cells.push_back(fixed(placement.measured[l][main].figures.replicas));
      cells.push_back(fixed(placement.measured[l][main].figures.load_imbalance));
    }
    cells.push_back(fixed(data.layers[l].bounds.random));
    cells.push_back(fixed(data.layers[l].bounds.lower()));
    table.add_row(cells);
  }
  return table;
}

TextTable run_table(const ReportData& data) {
  TextTable table({"", "processes", "tokens", "bytes sent", "as predicted", "result",
                   "max difference", "flips"});
  for (const PlacementReport& placement : data.placements) {
    if (placement.run) {
      const RunCheck& run = *placement.run;
      table.add_row({placement.label, std::to_string(run.num_processes), grouped(run.num_tokens),
                     grouped(run.bytes_sent), run.bytes_sent == run.bytes_predicted ? "yes" : "NO",
                     run.bit_equal ? "bit-equal" : "DIFFERS", scientific(run.max_difference),
                     grouped(run.num_flips)});
    }
  }
  return table;
}

bool has_run(const ReportData& data) {
  for (const PlacementReport& placement : data.placements) {
    if (placement.run) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string equality_cell(const PlacementReport& placement) {
  if (!placement.run) {
    return "-";
  }
  return placement.run->bit_equal ? "bit-equal" : "DIFFERS";
}

std::string headline(const ReportData& data) {
  const std::size_t text = headline_text(data);
  const double before = summarise(placement_named(data, data.baseline), text).replicas;
  const double after = summarise(placement_named(data, data.chosen), text).replicas;
  const std::string& kind = data.texts[text].name;
  if (after >= before) {
    return "A token of the " + kind + " text visits " + fixed(after) + " of " +
           std::to_string(data.num_devices) +
           " devices a layer; with experts in checkpoint order " + fixed(before) +
           ". This placement saves nothing.";
  }
  return "A token of the " + kind + " text visits " + fixed(after) + " of " +
         std::to_string(data.num_devices) + " devices a layer instead of " + fixed(before) + ": " +
         fixed(100 * (1 - after / before), 0) + " % less to send.";
}

std::string text_report(const ReportData& data) {
  check_report(data);
  const std::string& text = data.texts[headline_text(data)].name;
  std::string out = data.title + "\n\n" + headline(data) + "\n\n";
  out += "Devices a token visits in a layer (C_T), mean of " + std::to_string(data.layers.size()) +
         " layers: " + std::to_string(data.num_experts) + " experts, top-" +
         std::to_string(data.top_k) + ", " + std::to_string(data.num_devices) + " devices" +
         (data.load_cap ? ", load cap " + fixed(*data.load_cap) : "") + "\n";
  out += replicas_table(data).text();
  out += "\nThe busiest device over the mean of all, and bytes sent, " + text + " text\n";
  out += device_table(data).text();
  if (has_run(data)) {
    out += "\nRun over processes, compared with one process\n" + run_table(data).text();
  }
  out += "\nC_T and load of each layer, " + text + " text\n" + layer_table(data).text();
  for (const std::string& note : data.notes) {
    out += "\nNote: " + note + "\n";
  }
  return out;
}

}  // namespace coterie::report
