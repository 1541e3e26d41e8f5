// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"

namespace coterie::models {

/// Where queries and keys are normalised.
enum class QkNorm : std::uint8_t {
  kNone,
  kWholeProjection,  ///< RMSNorm over all heads together, before they are split (OLMoE)
  kEachHead,         ///< RMSNorm over each head, one weight for all (Qwen3); training only
};

/// A decoder as its `config.json` describes it: sizes, and the switches in which families differ.
/// Everything is stated here; nothing is taken from the weights or from defaults of the code.
struct ModelConfig {
  std::string family;  ///< `model_type`
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;               ///< H
  std::int64_t expert_intermediate_size = 0;  ///< I
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  std::int64_t num_experts = 0;  ///< E
  std::int64_t top_k = 0;        ///< experts a token
  /// The weights of a token's experts are divided by their sum (`norm_topk_prob`).
  bool renormalise = false;
  bool tied_head = false;
  bool attention_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  /// Queries, keys and values are clipped to [-clip, clip].
  std::optional<double> clip_qkv;
  /// A token sees at most this many tokens, itself included.
  std::optional<std::int64_t> sliding_window;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  /// Layers that are mixtures of experts, ascending.
  std::vector<std::int32_t> moe_layers;

  bool operator==(const ModelConfig&) const = default;
};

/// Reads `config.json` of a model folder (or the file itself). Keys have the spellings of
/// transformers 4 and 5. Errors name the file, the key and its value: kBadInput for a missing or
/// wrong value, kUnsupported for a family or a switch that no decoder here has (unknown keys
/// included, so that nothing is ignored that might change the result).
ModelConfig read_model_config(const std::filesystem::path& model);

/// As read_model_config, of a document that came from `source`.
ModelConfig model_config_from_json(const Json& document, const std::string& source);

/// `model_type` of all families, ascending.
std::vector<std::string> family_names();

}  // namespace coterie::models
