// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
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
  kEachHead,         ///< RMSNorm over each head, one weight for all (Qwen3, GLM-4.5)
};

/// What a router's scores are.
enum class RouterScore : std::uint8_t {
  kSoftmax,  ///< over all experts
  kSigmoid,  ///< of each logit alone
};

/// How a group of experts is ranked, if tokens choose groups first.
enum class GroupScore : std::uint8_t {
  kBest,     ///< its largest score (DeepSeek-V2)
  kTwoBest,  ///< the sum of its two largest, with the correction bias (DeepSeek-V3)
};

/// Sizes of multi-head latent attention (DeepSeek-V2).
struct LatentSizes {
  std::int64_t query_rank = 0;   ///< `q_lora_rank`; 0: queries straight from the token
  std::int64_t kv_rank = 0;      ///< `kv_lora_rank`
  std::int64_t nope_width = 0;   ///< `qk_nope_head_dim`
  std::int64_t rope_width = 0;   ///< `qk_rope_head_dim`
  std::int64_t value_width = 0;  ///< `v_head_dim`
  double norm_eps = 1e-6;        ///< of the norms of the latents

  bool operator==(const LatentSizes&) const = default;
};

/// YaRN (arXiv:2309.00071), keys of `rope_parameters` or `rope_scaling`.
struct Yarn {
  double factor = 1;
  std::int64_t original_positions = 0;  ///< `original_max_position_embeddings`
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;          ///< 0: absent
  double mscale_all_dim = 0;  ///< 0: absent
  std::optional<double> attention_factor;
  bool truncate = true;

  bool operator==(const Yarn&) const = default;
};

/// How a token's experts and their weights follow from the router's logits.
struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  bool correction_bias = false;  ///< experts are ranked by score + bias, weighed by score
  std::int64_t num_groups = 1;   ///< neighbouring experts; `n_group`
  std::int64_t top_groups = 1;   ///< groups that a token may choose from; `topk_group`
  GroupScore group_score = GroupScore::kBest;
  double scale = 1;  ///< of the weights, after renormalising; `routed_scaling_factor`

  /// Softmax and top-k alone, which the kernels' gate computes.
  [[nodiscard]] bool is_plain() const {
    return score == RouterScore::kSoftmax && !correction_bias && num_groups == 1 && scale == 1;
  }
  bool operator==(const RouterOptions&) const = default;
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
  bool attention_bias = false;  ///< of queries, keys and values; latent: of the down projections
  bool output_bias = false;     ///< of the output projection
  QkNorm qk_norm = QkNorm::kNone;
  /// Queries, keys and values are clipped to [-clip, clip].
  std::optional<double> clip_qkv;
  /// A token sees at most this many tokens, itself included.
  std::optional<std::int64_t> sliding_window;
  double rms_norm_eps = 0;
  double rope_theta = 0;
  std::optional<Yarn> yarn;
  std::optional<std::int64_t> rotary_dim;  ///< columns of a head that turn; absent: all
  bool rotary_interleaved = false;         ///< pairs (2i, 2i + 1) instead of (i, i + half)
  std::optional<LatentSizes> latent;       ///< multi-head latent attention; absent: grouped
  RouterOptions router;
  std::int64_t shared_intermediate_size = 0;  ///< of the shared experts together; 0: none
  bool shared_gate = false;                   ///< their output times sigmoid(gate x)
  std::int64_t dense_intermediate_size = 0;   ///< of the layers that are no mixtures
  /// Rows and columns that share a scale in a checkpoint in fp8; absent: none is in fp8.
  std::optional<std::array<std::int64_t, 2>> fp8_blocks;
  std::int64_t num_extra_layers = 0;  ///< stored behind the last one and not computed (MTP)
  /// Layers that are mixtures of experts, ascending.
  std::vector<std::int32_t> moe_layers;

  [[nodiscard]] std::int64_t rotary_width() const { return rotary_dim.value_or(head_dim); }
  [[nodiscard]] bool is_moe_layer(std::int64_t layer) const {
    return std::binary_search(moe_layers.begin(), moe_layers.end(), layer);
  }
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
