// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "coterie/report/report_data.hpp"

namespace coterie::report {

/// The report as one HTML page that needs nothing else: style, drawings and pictures are inside, no
/// script runs. Light or dark as the reader's system; from phone to desktop width.
std::string html_report(const ReportData& data);

/// Writes html_report(data) atomically.
void write_html_report(const std::filesystem::path& path, const ReportData& data);

}  // namespace coterie::report
