// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: collaboration pruning (Occult, section 4), which limits each token to few
/// devices and says by which experts the lost ones are replaced.
#include "coterie/plan/pruning/device_limit.hpp"
#include "coterie/plan/pruning/fit_budget.hpp"
#include "coterie/plan/pruning/layer_pruner.hpp"
#include "coterie/plan/pruning/measure_pruning.hpp"
#include "coterie/plan/pruning/pruning_file.hpp"
#include "coterie/plan/pruning/pruning_options.hpp"
#include "coterie/plan/pruning/similarity.hpp"
#include "coterie/plan/pruning/similarity_file.hpp"
