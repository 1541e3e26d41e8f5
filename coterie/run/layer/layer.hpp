// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: the mixture-of-experts layer.
#include "coterie/run/layer/measure_cluster.hpp"
#include "coterie/run/layer/moe_layer.hpp"
#include "coterie/run/layer/moe_options.hpp"
#include "coterie/run/layer/synthetic_layer.hpp"
#include "coterie/run/layer/training_layer.hpp"
