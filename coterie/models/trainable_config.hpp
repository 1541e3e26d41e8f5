// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/models/model_config.hpp"

namespace coterie::models {

/// A decoder that can be trained: what config.json says, and what only training needs.
///
/// Families (`model.family`):
///   "mixtral", "olmoe", "qwen3_moe"  as transformers has them: RMSNorm, rotary positions, SwiGLU
///       experts in every layer
///   "gpt2_moe"  GPT-2 blocks (learned positions, LayerNorm, biases, GELU by tanh, tied head) whose
///       feed-forward part is a mixture of GPT-2 experts in the layers `model.moe_layers` and
///       GPT-2's own elsewhere. transformers has no such family; names are GPT-2's, with
///       `transformer.h.N.mlp.gate.weight` and `.mlp.experts.E.up_proj.weight`, ...
struct TrainableConfig {
  ModelConfig model;
  std::int64_t dense_intermediate_size = 0;  ///< width of layers that are no mixtures; gpt2_moe
  double initializer_range = 0.02;           ///< deviation of new matrices and embeddings

  [[nodiscard]] bool is_gpt2() const { return model.family == "gpt2_moe"; }
  [[nodiscard]] bool is_moe_layer(std::int64_t layer) const;
  bool operator==(const TrainableConfig&) const = default;
};

/// Throws kBadInput or kUnsupported naming the field and its value.
void check_trainable_config(const TrainableConfig& config);

/// As config.json of the family; what it says is read back by read_trainable_config.
Json to_config_json(const TrainableConfig& config);

/// From config.json of a model folder (or the file itself). Errors as read_model_config.
TrainableConfig read_trainable_config(const std::filesystem::path& model);
/// Of a document that came from `source`.
TrainableConfig trainable_config_from_json(const Json& document, const std::string& source);

}  // namespace coterie::models
