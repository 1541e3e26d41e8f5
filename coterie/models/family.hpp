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
  void (*read_switches)(ConfigKeys& keys, ModelConfig& config);
};

std::span<const Family> families();

/// The family of that `model_type`; kUnsupported, naming `file` and the known ones, if none is.
const Family& family_named(const std::string& model_type, const std::string& file);

/// A pattern with its numbers filled in; `expert` < 0 if it has none.
std::string fill_name(const std::string& pattern, std::int64_t layer, std::int64_t expert = -1);

Family olmoe_family();
Family mixtral_family();

}  // namespace coterie::models
