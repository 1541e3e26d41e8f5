// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: in which order, and in how many chunks, a layer's steps run.
#include "coterie/plan/schedule/advice.hpp"
#include "coterie/plan/schedule/cluster_run.hpp"
#include "coterie/plan/schedule/exact_form.hpp"
#include "coterie/plan/schedule/gradient_partition.hpp"
#include "coterie/plan/schedule/layer_plan.hpp"
#include "coterie/plan/schedule/layer_sizes.hpp"
#include "coterie/plan/schedule/layer_work.hpp"
#include "coterie/plan/schedule/phase_graph.hpp"
#include "coterie/plan/schedule/plan_file.hpp"
#include "coterie/plan/schedule/planner.hpp"
#include "coterie/plan/schedule/schedules.hpp"
#include "coterie/plan/schedule/simulator.hpp"
#include "coterie/plan/schedule/task_graph.hpp"
#include "coterie/plan/schedule/timeline.hpp"
