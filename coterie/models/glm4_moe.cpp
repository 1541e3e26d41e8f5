// SPDX-License-Identifier: Apache-2.0
// GLM-4.5 and 4.6 (arXiv:2508.06471): DeepSeek-V3's router over grouped attention of which half of
// each head turns.
#include "coterie/models/family.hpp"

namespace coterie::models {

Family glm4_moe_family() {
  Family family;
  family.model_type = "glm4_moe";
  family.names = usual_names();
  family.names.router_bias = {"model.layers.{layer}.mlp.gate.e_score_correction_bias"};
  family.names.shared_mlp = "model.layers.{layer}.mlp.shared_experts.";
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    read_deepseek_layers(keys, config);
    read_bias_router(keys, config);
    config.attention_bias = keys.flag("attention_bias", false);
    config.qk_norm = keys.flag("use_qk_norm", false) ? QkNorm::kEachHead : QkNorm::kNone;
    config.rotary_dim = config.head_dim / 2;  // unless config.json says otherwise
  };
  return family;
}

}  // namespace coterie::models
