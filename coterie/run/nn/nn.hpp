// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: the mixture-of-experts layer as a libtorch module that trains.
#include "coterie/run/nn/expert_backend.hpp"
#include "coterie/run/nn/experts.hpp"
#include "coterie/run/nn/hooks.hpp"
#include "coterie/run/nn/moe_layer.hpp"
#include "coterie/run/nn/moe_layer_options.hpp"
#include "coterie/run/nn/routed_experts.hpp"
