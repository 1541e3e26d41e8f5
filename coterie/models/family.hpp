// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/models/config_keys.hpp"
#include "coterie/models/model_config.hpp"

namespace coterie::models {

/// How a family calls its tensors: "{layer}" and "{expert}" stand for numbers. A name may have
/// several spellings (writers differ); all are looked for.
struct TensorNames {
  std::string embedding = "model.embed_tokens.weight";        ///< [V, H]
  std::string final_norm = "model.norm.weight";               ///< [H]
  std::string head = "lm_head.weight";                        ///< [V, H], absent if tied
  std::string attention = "model.layers.{layer}.self_attn.";  ///< q_proj.weight, ...
  std::string attention_norm = "model.layers.{layer}.input_layernorm.weight";
  std::string moe_norm = "model.layers.{layer}.post_attention_layernorm.weight";
  std::vector<std::string> router;       ///< [E, H]
  std::vector<std::string> expert_gate;  ///< [I, H], one an expert
  std::vector<std::string> expert_up;    ///< [I, H], one an expert
  std::vector<std::string> expert_down;  ///< [H, I], one an expert
  std::vector<std::string> router_bias;  ///< [E], the correction bias
  /// Dense layers and shared experts are MLPs: prefix + "gate_proj.weight", ...
  std::string dense_mlp = "model.layers.{layer}.mlp.";
  std::string shared_mlp;   ///< empty: none
  std::string shared_gate;  ///< [1, H]
  /// All experts in one tensor, as transformers 5 holds them in memory: gate rows, then up rows.
  std::vector<std::string> fused_gate_up = {"model.layers.{layer}.mlp.experts.gate_up_proj"};
  std::vector<std::string> fused_down = {"model.layers.{layer}.mlp.experts.down_proj"};
};

/// A family of models: names and switches. Adding one is one file like olmoe.cpp and one line in
/// families.cpp.
struct Family {
  std::string model_type;
  TensorNames names;
  /// Sets the switches that are this family's own; sizes that all have are set before.
  void (*read_switches)(ConfigKeys& keys, ModelConfig& config) = nullptr;
  /// read_switches sets `moe_layers`; else all layers are mixtures.
  bool has_dense_layers = false;
};

/// Sets `moe_layers` to the layers for which `is_mixture` holds.
template <typename Predicate>
void set_moe_layers(ModelConfig& config, const Predicate& is_mixture) {
  config.moe_layers.clear();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (is_mixture(layer)) {
      config.moe_layers.push_back(static_cast<std::int32_t>(layer));
    }
  }
}

std::span<const Family> families();

/// The family of that `model_type`; kUnsupported, naming `file` and the known ones, if none is.
const Family& family_named(const std::string& model_type, const std::string& file);

/// A pattern with its numbers filled in; `expert` < 0 if it has none.
std::string fill_name(const std::string& pattern, std::int64_t layer, std::int64_t expert = -1);

/// Names as most families have them: `mlp.gate`, `mlp.experts.{expert}.gate_proj`, ...
TensorNames usual_names();
/// Layers of the Qwen families: `mlp_only_layers`, `decoder_sparse_step`, `intermediate_size`.
void read_sparse_layers(ConfigKeys& keys, ModelConfig& config);
/// Windows of the Qwen families: refused if a layer has one.
void refuse_windows(ConfigKeys& keys, const ModelConfig& config);
/// Layers and shared experts of the DeepSeek families: `first_k_dense_replace`, `moe_layer_freq`,
/// `n_shared_experts`, `moe_intermediate_size`, `intermediate_size`.
void read_deepseek_layers(ConfigKeys& keys, ModelConfig& config);
/// Latent attention of DeepSeek-V2 and V3.
void read_latent_sizes(ConfigKeys& keys, ModelConfig& config);
/// DeepSeek-V3's router: sigmoid, correction bias, groups by their two best, scaling.
void read_bias_router(ConfigKeys& keys, ModelConfig& config);

Family deepseek_family();
Family deepseek_v2_family();
Family deepseek_v3_family();
Family glm4_moe_family();
Family mixtral_family();
Family olmoe_family();
Family qwen2_moe_family();
Family qwen3_moe_family();

}  // namespace coterie::models
