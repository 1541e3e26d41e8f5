// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: what links and products cost.
#include "coterie/plan/cost/cluster_profile.hpp"
#include "coterie/plan/cost/contention.hpp"
#include "coterie/plan/cost/cost_model.hpp"
#include "coterie/plan/cost/drift.hpp"
#include "coterie/plan/cost/fit.hpp"
#include "coterie/plan/cost/resource.hpp"
