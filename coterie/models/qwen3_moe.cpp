// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (arXiv:2505.09388): norms of each head's queries and keys, no shared expert.
#include "coterie/models/family.hpp"

namespace coterie::models {

Family qwen3_moe_family() {
  Family family;
  family.model_type = "qwen3_moe";
  family.names = usual_names();
  family.has_dense_layers = true;
  family.read_switches = [](ConfigKeys& keys, ModelConfig& config) {
    config.renormalise = keys.flag("norm_topk_prob", false);
    config.attention_bias = keys.flag("attention_bias", false);
    config.output_bias = config.attention_bias;
    config.qk_norm = QkNorm::kEachHead;
    read_sparse_layers(keys, config);
    refuse_windows(keys, config);
  };
  return family;
}

}  // namespace coterie::models
