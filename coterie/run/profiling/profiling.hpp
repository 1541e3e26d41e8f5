// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: what links and products really take.
#include "coterie/run/profiling/measure.hpp"
#include "coterie/run/profiling/nodes.hpp"
#include "coterie/run/profiling/record_timeline.hpp"
