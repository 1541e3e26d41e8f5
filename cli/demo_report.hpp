// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "cli/demo_job.hpp"

namespace coterie::cli {

/// All that the job found out, as the report shows it.
report::ReportData make_report(const DemoOptions& options, const TracedText& text,
                               const std::vector<JudgedPlacement>& placements,
                               const DomainTransfer& transfer,
                               std::optional<double> placed_model_difference);

}  // namespace coterie::cli
