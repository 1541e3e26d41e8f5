// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: routing traces and what follows from them.
#include "coterie/plan/routing/bounds.hpp"
#include "coterie/plan/routing/collaboration.hpp"
#include "coterie/plan/routing/expert_sets.hpp"
#include "coterie/plan/routing/import.hpp"
#include "coterie/plan/routing/replicas.hpp"
#include "coterie/plan/routing/selection.hpp"
#include "coterie/plan/routing/trace.hpp"
#include "coterie/plan/routing/trace_file.hpp"
