// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/model_placement.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::models {

std::vector<placement::LayerPlacement> layer_placements(const placement::Placement& placement,
                                                        const ModelConfig& config,
                                                        const std::string& fingerprint) {
  COTERIE_REQUIRE(placement.model_fingerprint.empty() || fingerprint.empty() ||
                      placement.model_fingerprint == fingerprint,
                  "the placement was made for another model: its fingerprint is ",
                  placement.model_fingerprint, ", this model's is ", fingerprint);
  for (const placement::PlacedLayer& placed : placement.layers) {
    COTERIE_REQUIRE(std::ranges::binary_search(config.moe_layers, placed.layer),
                    "the placement has layer ", placed.layer,
                    ", which is no mixture-of-experts layer of this model (",
                    config.moe_layers.size(), " of ", config.num_layers, " layers are)");
  }
  std::vector<placement::LayerPlacement> placements;
  for (const std::int32_t layer : config.moe_layers) {
    const placement::LayerPlacement* found = placement.find(layer);
    COTERIE_REQUIRE(found != nullptr, "the placement leaves out layer ", layer, " of the model");
    const std::string where = join_message("placement, layer ", layer);
    COTERIE_REQUIRE(found->num_experts == config.num_experts, where, ": ", found->num_experts,
                    " experts, the model has ", config.num_experts);
    check_layer_placement(*found, where);
    placements.push_back(*found);
  }
  return placements;
}

}  // namespace coterie::models
