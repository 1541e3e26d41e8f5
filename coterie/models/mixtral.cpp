// SPDX-License-Identifier: Apache-2.0
// Mixtral (arXiv:2401.04088): few large experts, weights always renormalised, optional sliding
// window. On disk w1 is the gate, w3 the up and w2 the down projection.
#include "coterie/models/family.hpp"

namespace coterie::models {

Family mixtral_family() {
  Family family;
  family.model_type = "mixtral";
  family.names.router = {"model.layers.{layer}.block_sparse_moe.gate.weight",
                         "model.layers.{layer}.mlp.gate.weight"};
  const std::string experts = "model.layers.{layer}.block_sparse_moe.experts.{expert}.";
  family.names.expert_gate = {experts + "w1.weight"};
  family.names.expert_up = {experts + "w3.weight"};
  family.names.expert_down = {experts + "w2.weight"};
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    config.expert_intermediate_size = keys.size({"intermediate_size", "moe_intermediate_size"});
    config.renormalise = true;
    config.sliding_window = keys.optional_size({"sliding_window"});
  };
  return family;
}

}  // namespace coterie::models
