// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: where experts live.
#include "coterie/plan/placement/drift.hpp"
#include "coterie/plan/placement/drift_monitor.hpp"
#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/measure.hpp"
#include "coterie/plan/placement/options.hpp"
#include "coterie/plan/placement/place_layer.hpp"
#include "coterie/plan/placement/place_trace.hpp"
#include "coterie/plan/placement/placement_file.hpp"
#include "coterie/plan/placement/replica_chooser.hpp"
#include "coterie/plan/placement/verify.hpp"
