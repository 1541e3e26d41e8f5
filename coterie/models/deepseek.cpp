// SPDX-License-Identifier: Apache-2.0
// DeepSeekMoE (arXiv:2401.06066), model_type "deepseek": plain attention, shared experts, dense
// first layers, softmax router.
#include "coterie/base/error.hpp"
#include "coterie/models/family.hpp"

namespace coterie::models {

void read_deepseek_layers(ConfigKeys& keys, ModelConfig& config) {
  const std::int64_t first = keys.count({"first_k_dense_replace"}, 0);
  const std::int64_t step = keys.optional_size({"moe_layer_freq"}).value_or(1);
  config.expert_intermediate_size = keys.size({"moe_intermediate_size"});
  config.dense_intermediate_size = keys.size({"intermediate_size"});
  config.shared_intermediate_size =
      keys.count({"n_shared_experts"}, 0) * config.expert_intermediate_size;
  set_moe_layers(config, [&](std::int64_t layer) { return layer >= first && layer % step == 0; });
  keys.pass_over("aux_loss_alpha");
  keys.pass_over("seq_aux");
  keys.pass_over("ep_size");
}

Family deepseek_family() {
  Family family;
  family.model_type = "deepseek";
  family.names = usual_names();
  family.names.shared_mlp = "model.layers.{layer}.mlp.shared_experts.";
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    read_deepseek_layers(keys, config);
    keys.only("scoring_func", "softmax");
    config.renormalise = keys.flag("norm_topk_prob", false);
    config.attention_bias = keys.flag("attention_bias", false);
    config.output_bias = config.attention_bias;
  };
  return family;
}

}  // namespace coterie::models
