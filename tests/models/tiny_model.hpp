// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/base/random.hpp"
#include "coterie/models/models.hpp"

namespace coterie::models {

/// A random OLMoE model, small enough to make in a test.
struct TinyModel {
  std::int64_t hidden = 24;
  std::int64_t intermediate = 20;
  std::int64_t num_layers = 3;
  std::int64_t num_heads = 4;
  std::int64_t num_experts = 8;
  std::int64_t top_k = 3;
  std::int64_t vocab = 61;
  bool renormalise = false;
  std::uint64_t seed = 1;
  std::int64_t nan_expert = -1;  ///< this expert's down projection is NaN in every layer
};

inline OutgoingTensor random_tensor(const std::string& name, std::vector<std::int64_t> shape,
                                    Random& random, float mean, float deviation) {
  std::vector<float> values(bytes_of(ElementType::kF32, shape).value() / sizeof(float));
  for (float& value : values) {
    value = mean + deviation * static_cast<float>(random.normal());
  }
  return {name, ElementType::kF32, std::move(shape),
          [values](const ByteConsumer& consume) { consume(std::as_bytes(std::span(values))); }};
}

inline std::vector<OutgoingTensor> tiny_tensors(const TinyModel& model) {
  Random random(model.seed);
  const auto H = model.hidden;
  const auto I = model.intermediate;
  std::vector<OutgoingTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float mean = 0,
                       float deviation = 0.25F) {
    tensors.push_back(random_tensor(name, std::move(shape), random, mean, deviation));
  };
  add("model.embed_tokens.weight", {model.vocab, H}, 0, 1);
  add("model.norm.weight", {H}, 1);
  add("lm_head.weight", {model.vocab, H});
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    add(base + "input_layernorm.weight", {H}, 1);
    add(base + "post_attention_layernorm.weight", {H}, 1);
    for (const char* name : {"q", "k", "v", "o"}) {
      add(base + "self_attn." + name + "_proj.weight", {H, H});
    }
    add(base + "self_attn.q_norm.weight", {H}, 1);
    add(base + "self_attn.k_norm.weight", {H}, 1);
    add(base + "mlp.gate.weight", {model.num_experts, H});
    for (std::int64_t e = 0; e < model.num_experts; ++e) {
      const std::string expert = base + "mlp.experts." + std::to_string(e) + ".";
      add(expert + "gate_proj.weight", {I, H});
      add(expert + "up_proj.weight", {I, H});
      const float mean = e == model.nan_expert ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
      add(expert + "down_proj.weight", {H, I}, mean);
    }
  }
  return tensors;
}

inline void write_tiny_model(const std::filesystem::path& folder, const TinyModel& model) {
  write_checkpoint(folder, tiny_tensors(model));
  write_json_file(folder / "config.json", Json{{"model_type", "olmoe"},
                                               {"vocab_size", model.vocab},
                                               {"hidden_size", model.hidden},
                                               {"intermediate_size", model.intermediate},
                                               {"num_hidden_layers", model.num_layers},
                                               {"num_attention_heads", model.num_heads},
                                               {"num_key_value_heads", model.num_heads},
                                               {"max_position_embeddings", 256},
                                               {"num_experts", model.num_experts},
                                               {"num_experts_per_tok", model.top_k},
                                               {"norm_topk_prob", model.renormalise},
                                               {"rms_norm_eps", 1e-5},
                                               {"hidden_act", "silu"},
                                               {"rope_theta", 10000.0}});
}

}  // namespace coterie::models
