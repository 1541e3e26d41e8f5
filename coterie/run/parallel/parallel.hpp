// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: who holds which part of a model, and sums over ranks.
#include "coterie/run/parallel/groups.hpp"
#include "coterie/run/parallel/layout.hpp"
#include "coterie/run/parallel/ordered_sum.hpp"
#include "coterie/run/parallel/reduce_table.hpp"
