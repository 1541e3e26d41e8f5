// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 and R1 (arXiv:2412.19437), Moonlight, Kimi-K2: latent attention, sigmoid router with
// a correction bias, groups ranked by their two best experts. Layers for multi-token prediction are
// stored behind the last one and not computed.
#include "coterie/models/family.hpp"

namespace coterie::models {

void read_bias_router(ConfigKeys& keys, ModelConfig& config) {
  keys.only("scoring_func", "sigmoid");
  keys.only("topk_method", "noaux_tc");
  config.router.score = RouterScore::kSigmoid;
  config.router.correction_bias = true;
  config.router.num_groups = keys.optional_size({"n_group"}).value_or(1);
  config.router.top_groups = keys.optional_size({"topk_group"}).value_or(1);
  config.router.group_score = GroupScore::kTwoBest;
  config.router.scale = keys.optional_positive("routed_scaling_factor").value_or(1);
  config.renormalise = keys.flag("norm_topk_prob", true);
  config.num_extra_layers = keys.count({"num_nextn_predict_layers", "num_mtp_layers"}, 0);
}

Family deepseek_v3_family() {
  Family family;
  family.model_type = "deepseek_v3";
  family.names = usual_names();
  family.names.router_bias = {"model.layers.{layer}.mlp.gate.e_score_correction_bias"};
  family.names.shared_mlp = "model.layers.{layer}.mlp.shared_experts.";
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    read_deepseek_layers(keys, config);
    read_latent_sizes(keys, config);
    read_bias_router(keys, config);
    config.rotary_interleaved = keys.flag("rope_interleave", true);
  };
  return family;
}

}  // namespace coterie::models
