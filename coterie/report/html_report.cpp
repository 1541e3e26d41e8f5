// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/html_report.hpp"

#include "coterie/base/file.hpp"
#include "coterie/report/html_sections.hpp"
#include "coterie/report/markup.hpp"

namespace coterie::report {

std::string html_report(const ReportData& data) {
  check_report(data);
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>" +
      escape(data.title) + "</title><style>" + style_sheet(data.layers.size()) +
      "</style></head>\n<body><main>\n";
  html += lead_section(data);
  html += table_section(data);
  html += heat_map_section(data);
  html +=
      "<div class=\"two\">" + replicas_chart_section(data) + load_chart_section(data) + "</div>\n";
  html += layers_section(data);
  html += explanation_section(data);
  html += provenance_section(data);
  html +=
      "<footer>Written by Coterie. This page holds everything it shows and loads nothing.</footer>";
  return html + "\n</main></body></html>\n";
}

void write_html_report(const std::filesystem::path& path, const ReportData& data) {
  write_text_file(path, html_report(data));
}

}  // namespace coterie::report
