// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coterie/report/report_data.hpp"

/// The parts of the page, top to bottom; each is a complete element. Not part of the room's door.
namespace coterie::report {

std::string lead_section(const ReportData& data);
std::string table_section(const ReportData& data);
std::string heat_map_section(const ReportData& data);
std::string replicas_chart_section(const ReportData& data);
std::string load_chart_section(const ReportData& data);
std::string layers_section(const ReportData& data);
std::string explanation_section(const ReportData& data);
std::string provenance_section(const ReportData& data);

}  // namespace coterie::report
