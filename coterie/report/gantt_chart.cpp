// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/gantt_chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "coterie/report/markup.hpp"
#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

using schedule::Lane;
using schedule::Span;
using schedule::Timeline;

constexpr double kLeft = 92;
constexpr double kWidth = 920;
constexpr double kTop = 56;
constexpr double kRowHeight = 26;
constexpr double kRowGap = 6;
constexpr double kLetterWidth = 7.5;
/// The order of rows within a device: from the network to the arithmetic.
constexpr std::array kLanes = {Lane::kInter, Lane::kIntra, Lane::kCompute};

constexpr const char* kStyle =
    "<style>text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-size:15px;font-weight:600}"
    ".axis{stroke:#d0d7de}.box{stroke:#fff;stroke-width:1}.l{fill:#fff;text-anchor:middle}"
    ".attention,.dense_gather,.dense_scatter{fill:#8c959f}.dispatch{fill:#0969da}"
    ".gather{fill:#8250df}.experts{fill:#1a7f37}.scatter{fill:#bf3989}.combine{fill:#0a3069}"
    ".shared_experts{fill:#4d7c0f}.gradient{fill:#bc4c00}.weights{fill:#2da44e}</style>";

std::string time_text(double time_s) {
  return time_s >= 1 ? fixed(time_s, 3) + " s" : fixed(time_s * 1e3, 3) + " ms";
}

/// Rows that hold anything, top to bottom.
std::vector<std::pair<std::int32_t, Lane>> rows_of(const Timeline& timeline) {
  std::map<std::int32_t, std::array<bool, schedule::kNumLanes>> used;
  for (const Span& span : timeline.spans) {
    used[span.device][static_cast<std::size_t>(span.lane)] = true;
  }
  std::vector<std::pair<std::int32_t, Lane>> rows;
  for (const auto& [device, lanes] : used) {
    for (const Lane lane : kLanes) {
      if (lanes[static_cast<std::size_t>(lane)]) {
        rows.emplace_back(device, lane);
      }
    }
  }
  return rows;
}

std::string box_of(const Span& span, double y, double scale) {
  const double x = kLeft + span.start_s * scale;
  const double width = (span.end_s - span.start_s) * scale;
  const std::string label = schedule::label_of(span);
  std::string svg = "<g><rect class=\"box " + std::string(schedule::name_of(span.kind)) +
                    "\" x=\"" + fixed(x, 2) + "\" y=\"" + fixed(y, 1) + "\" width=\"" +
                    fixed(width, 2) + "\" height=\"" + fixed(kRowHeight, 0) + "\" rx=\"2\"/>";
  if (width > kLetterWidth * static_cast<double>(label.size()) + 2) {
    svg += "<text class=\"l\" x=\"" + fixed(x + width / 2, 1) + "\" y=\"" + fixed(y + 17, 1) +
           "\">" + label + "</text>";
  }
  return svg + "<title>" +
         escape(label + " (" + std::string(schedule::name_of(span.kind)) + ", " +
                std::string(schedule::name_of(span.phase)) + "): " + time_text(span.start_s) +
                " to " + time_text(span.end_s)) +
         "</title></g>";
}

/// Ticks at 1, 2 or 5 times a power of ten.
std::string axis_of(double end_s, double scale, double height) {
  if (end_s <= 0) {
    return "";
  }
  const double power = std::pow(10.0, std::floor(std::log10(end_s / 6)));
  const double ratio = end_s / 6 / power;
  const double step = power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
  std::string svg;
  for (int i = 0; i * step <= end_s * 1.0001; ++i) {
    const std::string x = fixed(kLeft + i * step * scale, 1);
    svg += "<line class=\"axis\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"" + fixed(kTop - 6, 0) +
           "\" y2=\"" + fixed(height, 0) + "\"/><text x=\"" + x + "\" y=\"" + fixed(kTop - 12, 0) +
           "\" text-anchor=\"middle\">" + time_text(i * step) + "</text>";
  }
  return svg;
}

}  // namespace

std::string gantt_svg(const Timeline& timeline, const std::string& title) {
  const auto rows = rows_of(timeline);
  const double end_s = timeline.end_s();
  const double scale = end_s > 0 ? (kWidth - kLeft - 30) / end_s : 0;
  const double height = kTop + static_cast<double>(rows.size()) * (kRowHeight + kRowGap) + 8;
  const bool has_devices = !rows.empty() && rows.front().first != rows.back().first;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 " +
                    fixed(kWidth, 0) + " " + fixed(height, 0) + "\" aria-label=\"" + escape(title) +
                    "\">" + kStyle + "<text class=\"t\" x=\"8\" y=\"20\">" + escape(title) +
                    "</text>" + axis_of(end_s, scale, height);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + static_cast<double>(r) * (kRowHeight + kRowGap);
    const std::string device = has_devices ? std::to_string(rows[r].first) + " " : "";
    svg += "<text x=\"8\" y=\"" + fixed(y + 17, 1) + "\">" + device +
           std::string(schedule::name_of(rows[r].second)) + "</text>";
    for (const Span& span : timeline.spans) {
      if (span.device == rows[r].first && span.lane == rows[r].second) {
        svg += box_of(span, y, scale);
      }
    }
  }
  return svg + "</svg>\n";
}

Json trace_events(const Timeline& timeline) {
  Json events = Json::array();
  for (const auto& [device, lane] : rows_of(timeline)) {
    const auto thread = static_cast<int>(lane);
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", device},
                      {"args", {{"name", "device " + std::to_string(device)}}}});
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", device},
                      {"tid", thread},
                      {"args", {{"name", schedule::name_of(lane)}}}});
  }
  for (const Span& span : timeline.spans) {
    events.push_back({{"ph", "X"},
                      {"name", schedule::label_of(span)},
                      {"cat", schedule::name_of(span.kind)},
                      {"pid", span.device},
                      {"tid", static_cast<int>(span.lane)},
                      {"ts", span.start_s * 1e6},
                      {"dur", (span.end_s - span.start_s) * 1e6},
                      {"args",
                       {{"layer", span.layer},
                        {"phase", schedule::name_of(span.phase)},
                        {"chunk", span.chunk}}}});
  }
  return {{"displayTimeUnit", "ms"},
          {"otherData", {{"name", timeline.name}}},
          {"traceEvents", std::move(events)}};
}

}  // namespace coterie::report
