// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coterie/base/json.hpp"
#include "coterie/plan/schedule/schedule.hpp"

namespace coterie::report {

/// SVG of a timeline, simulated or measured: a row a lane and device, a box a task, labelled where
/// there is room, with kind, chunk, start and end as tooltip. A file of its own (style included).
std::string gantt_svg(const schedule::Timeline& timeline, const std::string& title);

/// The timeline in the Trace Event Format that chrome://tracing and ui.perfetto.dev open: a process
/// a device, a thread a lane, a complete event ("ph": "X") a task, microseconds.
Json trace_events(const schedule::Timeline& timeline);

}  // namespace coterie::report
