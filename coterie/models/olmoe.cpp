// SPDX-License-Identifier: Apache-2.0
// OLMoE (arXiv:2409.02060): qk-norm over the whole projection, optional clipping, weights not
// renormalised unless norm_topk_prob says so.
#include "coterie/models/family.hpp"

namespace coterie::models {

Family olmoe_family() {
  Family family;
  family.model_type = "olmoe";
  family.names.router = {"model.layers.{layer}.mlp.gate.weight"};
  family.names.expert_gate = {"model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"};
  family.names.expert_up = {"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"};
  family.names.expert_down = {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"};
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    config.renormalise = keys.flag("norm_topk_prob", false);
    config.qk_norm = QkNorm::kWholeProjection;
    config.clip_qkv = keys.optional_positive("clip_qkv");
    config.attention_bias = keys.flag("attention_bias", false);
  };
  return family;
}

}  // namespace coterie::models
