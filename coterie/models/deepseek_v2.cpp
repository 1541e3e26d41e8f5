// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 and V2-Lite (arXiv:2405.04434): latent attention, groups ranked by their best expert.
#include "coterie/models/family.hpp"

namespace coterie::models {

void read_latent_sizes(ConfigKeys& keys, ModelConfig& config) {
  LatentSizes latent;
  latent.query_rank = keys.count({"q_lora_rank"}, 0);
  latent.kv_rank = keys.size({"kv_lora_rank"});
  latent.nope_width = keys.size({"qk_nope_head_dim"});
  latent.rope_width = keys.size({"qk_rope_head_dim"});
  latent.value_width = keys.size({"v_head_dim"});
  config.latent = latent;
  config.head_dim = latent.rope_width;  // what turns; widths of keys and values are above
  config.num_kv_heads = config.num_heads;
  config.attention_bias = keys.flag("attention_bias", false);
  config.output_bias = config.attention_bias;
  keys.pass_over("qk_head_dim");  // the sum of two others
}

Family deepseek_v2_family() {
  Family family;
  family.model_type = "deepseek_v2";
  family.names = usual_names();
  family.names.shared_mlp = "model.layers.{layer}.mlp.shared_experts.";
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    read_deepseek_layers(keys, config);
    read_latent_sizes(keys, config);
    config.rotary_interleaved = true;
    keys.only("scoring_func", "softmax");
    keys.only("mlp_bias", false, "biases of MLPs are not known here");
    // Implementations differ in whether renormalised weights are scaled.
    keys.only("norm_topk_prob", false, "implementations of this family disagree about it");
    config.router.scale = keys.optional_positive("routed_scaling_factor").value_or(1);
    const std::int64_t groups = keys.optional_size({"n_group"}).value_or(1);
    const std::int64_t top_groups = keys.optional_size({"topk_group"}).value_or(1);
    const std::string method = keys.has("topk_method") ? keys.text("topk_method") : "greedy";
    if (method == "group_limited_greedy") {
      config.router.num_groups = groups;
      config.router.top_groups = top_groups;
    } else if (method != "greedy") {
      keys.unsupported("topk_method", method, "greedy and group_limited_greedy are known here");
    }
  };
  return family;
}

}  // namespace coterie::models
