// SPDX-License-Identifier: Apache-2.0
// OLMoE (arXiv:2409.02060): qk-norm over the whole projection, optional clipping, weights not
// renormalised unless norm_topk_prob says so.
#include "coterie/models/family.hpp"

namespace coterie::models {

Family olmoe_family() {
  Family family;
  family.model_type = "olmoe";
  family.names = usual_names();
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    config.expert_intermediate_size = keys.size({"intermediate_size", "moe_intermediate_size"});
    config.renormalise = keys.flag("norm_topk_prob", false);
    config.qk_norm = QkNorm::kWholeProjection;
    config.clip_qkv = keys.optional_positive("clip_qkv");
    config.attention_bias = keys.flag("attention_bias", false);
    config.output_bias = config.attention_bias;
  };
  return family;
}

}  // namespace coterie::models
