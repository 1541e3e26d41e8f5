// SPDX-License-Identifier: Apache-2.0
// Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): a gated shared expert, dense layers by step and list,
// biases of queries, keys and values.
#include <algorithm>

#include "coterie/models/family.hpp"

namespace coterie::models {

void read_sparse_layers(ConfigKeys& keys, ModelConfig& config) {
  const std::int64_t step = keys.optional_size({"decoder_sparse_step"}).value_or(1);
  const std::vector<std::int64_t> dense = keys.integers("mlp_only_layers");
  config.dense_intermediate_size = keys.size({"intermediate_size"});
  config.expert_intermediate_size = keys.size({"moe_intermediate_size"});
  set_moe_layers(config, [&](std::int64_t layer) {
    return (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
  });
}

void refuse_windows(ConfigKeys& keys, const ModelConfig& config) {
  const bool has_windows = keys.flag("use_sliding_window", false);
  if (has_windows) {
    keys.unsupported("use_sliding_window", true, "windows of some layers only are not known here");
  }
  // What these say holds for models with windows alone.
  for (const char* key : {"sliding_window", "max_window_layers"}) {
    keys.pass_over(key);
  }
  keys.all_of("layer_types", "full_attention", config.num_layers);
}

Family qwen2_moe_family() {
  Family family;
  family.model_type = "qwen2_moe";
  family.names = usual_names();
  family.names.shared_mlp = "model.layers.{layer}.mlp.shared_expert.";
  family.names.shared_gate = "model.layers.{layer}.mlp.shared_expert_gate.weight";
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    config.renormalise = keys.flag("norm_topk_prob", false);
    config.attention_bias = keys.flag("qkv_bias", true);
    config.shared_intermediate_size = keys.size({"shared_expert_intermediate_size"});
    config.shared_gate = true;
    read_sparse_layers(keys, config);
    refuse_windows(keys, config);
  };
  return family;
}

}  // namespace coterie::models
