// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coterie/models/model_config.hpp"
#include "coterie/plan/placement/placement.hpp"

namespace coterie::models {

/// The placement of each MoE layer of a model, in the order of `config.moe_layers`. kBadInput,
/// naming layer and values, if the placement is for another model: another fingerprint, layers that
/// the model does not have or that are left out, another number of experts.
std::vector<placement::LayerPlacement> layer_placements(const placement::Placement& placement,
                                                        const ModelConfig& config,
                                                        const std::string& fingerprint);

}  // namespace coterie::models
