// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: what a job shows to people. It fills no data in itself.
#include "coterie/report/gantt_chart.hpp"
#include "coterie/report/html_report.hpp"
#include "coterie/report/report_data.hpp"
#include "coterie/report/text_report.hpp"
#include "coterie/report/text_table.hpp"
