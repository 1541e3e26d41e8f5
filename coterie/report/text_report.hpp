// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coterie/report/report_data.hpp"

namespace coterie::report {

/// The report as plain text for a terminal, some 100 columns wide: the headline, all layers
/// together, the check against one process, each layer.
std::string text_report(const ReportData& data);

/// The one or two sentences that say what came out, for people who know nothing yet.
std::string headline(const ReportData& data);

/// What came of the run over processes, as a short cell: "bit-equal", "DIFFERS", "-" (not run).
std::string equality_cell(const PlacementReport& placement);

}  // namespace coterie::report
