// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_config.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/config_keys.hpp"

namespace coterie::models {
namespace {

namespace fs = std::filesystem;

bool is_llama_like(const std::string& family) {
  return family == "mixtral" || family == "olmoe" || family == "qwen3_moe";
}

/// Every `period`-th layer, the last of each period.
std::vector<std::int32_t> every(std::int64_t num_layers, std::int64_t period) {
  std::vector<std::int32_t> layers;
  for (std::int64_t layer = period - 1; layer < num_layers; layer += period) {
    layers.push_back(static_cast<std::int32_t>(layer));
  }
  return layers;
}

TrainableConfig read_gpt2(ConfigKeys& keys) {
  TrainableConfig config;
  ModelConfig& model = config.model;
  model.family = "gpt2_moe";
  model.vocab_size = keys.size({"vocab_size"});
  model.hidden_size = keys.size({"n_embd"});
  model.num_layers = keys.size({"n_layer"});
  model.num_heads = keys.size({"n_head"});
  model.num_kv_heads = model.num_heads;
  COTERIE_REQUIRE(model.hidden_size % model.num_heads == 0, keys.file(),
                  ": n_embd = ", model.hidden_size,
                  " does not divide by n_head = ", model.num_heads);
  model.head_dim = model.hidden_size / model.num_heads;
  model.max_positions = keys.size({"n_positions"});
  config.dense_intermediate_size = keys.optional_size({"n_inner"}).value_or(4 * model.hidden_size);
  model.expert_intermediate_size =
      keys.optional_size({"moe_intermediate_size"}).value_or(config.dense_intermediate_size);
  model.num_experts = keys.size({"num_experts"});
  model.top_k = keys.size({"num_experts_per_tok"});
  model.renormalise = keys.flag("norm_topk_prob", false);
  model.tied_head = true;
  model.attention_bias = true;
  model.rms_norm_eps = keys.positive("layer_norm_epsilon");
  model.moe_layers = every(model.num_layers, keys.optional_size({"moe_period"}).value_or(1));
  config.initializer_range = keys.optional_positive("initializer_range").value_or(0.02);
  keys.only("activation_function", "gelu_new");
  keys.finish();
  return config;
}

std::int64_t period_of(const ModelConfig& model) {
  for (std::int64_t period = 1; period <= model.num_layers; ++period) {
    if (every(model.num_layers, period) == model.moe_layers) {
      return period;
    }
  }
  fail(ErrorCode::kUnsupported, "gpt2_moe: moe_layers must be every n-th layer");
}

Json gpt2_json(const TrainableConfig& config) {
  const ModelConfig& model = config.model;
  return Json{{"model_type", model.family},
              {"vocab_size", model.vocab_size},
              {"n_embd", model.hidden_size},
              {"n_layer", model.num_layers},
              {"n_head", model.num_heads},
              {"n_positions", model.max_positions},
              {"n_inner", config.dense_intermediate_size},
              {"moe_intermediate_size", model.expert_intermediate_size},
              {"num_experts", model.num_experts},
              {"num_experts_per_tok", model.top_k},
              {"norm_topk_prob", model.renormalise},
              {"moe_period", period_of(model)},
              {"layer_norm_epsilon", model.rms_norm_eps},
              {"activation_function", "gelu_new"},
              {"initializer_range", config.initializer_range}};
}

Json llama_json(const TrainableConfig& config) {
  const ModelConfig& model = config.model;
  const bool is_mixtral = model.family == "mixtral";
  const bool is_qwen = model.family == "qwen3_moe";
  Json json{
      {"model_type", model.family},
      {"architectures", Json::array({is_mixtral ? "MixtralForCausalLM"
                                     : is_qwen  ? "Qwen3MoeForCausalLM"
                                                : "OlmoeForCausalLM"})},
      {"vocab_size", model.vocab_size},
      {"hidden_size", model.hidden_size},
      {is_qwen ? "moe_intermediate_size" : "intermediate_size", model.expert_intermediate_size},
      {"num_hidden_layers", model.num_layers},
      {"num_attention_heads", model.num_heads},
      {"num_key_value_heads", model.num_kv_heads},
      {"head_dim", model.head_dim},
      {"max_position_embeddings", model.max_positions},
      {is_mixtral ? "num_local_experts" : "num_experts", model.num_experts},
      {"num_experts_per_tok", model.top_k},
      {"rms_norm_eps", model.rms_norm_eps},
      {"rope_parameters", Json{{"rope_theta", model.rope_theta}, {"rope_type", "default"}}},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", model.tied_head},
      {"initializer_range", config.initializer_range}};
  if (!is_mixtral) {
    json["norm_topk_prob"] = model.renormalise;
    json["attention_bias"] = model.attention_bias;
  }
  if (model.clip_qkv) {
    json["clip_qkv"] = *model.clip_qkv;
  }
  if (model.sliding_window) {
    json["sliding_window"] = *model.sliding_window;
  }
  if (is_qwen) {
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
  }
  return json;
}

TrainableConfig read_qwen3(ConfigKeys& keys) {
  TrainableConfig config;
  ModelConfig& model = config.model;
  model.family = "qwen3_moe";
  model.vocab_size = keys.size({"vocab_size"});
  model.hidden_size = keys.size({"hidden_size"});
  model.expert_intermediate_size = keys.size({"moe_intermediate_size"});
  static_cast<void>(keys.optional_size({"intermediate_size"}));  // of dense layers: there are none
  model.num_layers = keys.size({"num_hidden_layers"});
  model.num_heads = keys.size({"num_attention_heads"});
  model.num_kv_heads = keys.optional_size({"num_key_value_heads"}).value_or(model.num_heads);
  model.head_dim = keys.optional_size({"head_dim"}).value_or(model.hidden_size / model.num_heads);
  model.max_positions = keys.size({"max_position_embeddings"});
  model.num_experts = keys.size({"num_experts", "num_local_experts"});
  model.top_k = keys.size({"num_experts_per_tok"});
  model.renormalise = keys.flag("norm_topk_prob", false);
  model.attention_bias = keys.flag("attention_bias", false);
  model.qk_norm = QkNorm::kEachHead;
  model.rms_norm_eps = keys.positive("rms_norm_eps");
  model.rope_theta = keys.rope_theta();
  model.tied_head = keys.flag("tie_word_embeddings", false);
  COTERIE_REQUIRE(keys.optional_size({"decoder_sparse_step"}).value_or(1) == 1, keys.file(),
                  ": decoder_sparse_step must be 1");
  model.moe_layers = every(model.num_layers, 1);
  config.initializer_range = keys.optional_positive("initializer_range").value_or(0.02);
  return config;
}

}  // namespace

bool TrainableConfig::is_moe_layer(std::int64_t layer) const {
  return std::ranges::binary_search(model.moe_layers, static_cast<std::int32_t>(layer));
}

void check_trainable_config(const TrainableConfig& config) {
  const ModelConfig& model = config.model;
  if (!config.is_gpt2() && !is_llama_like(model.family)) {
    fail(ErrorCode::kUnsupported, "training: family \"", model.family,
         "\" is not known; gpt2_moe, mixtral, olmoe and qwen3_moe are");
  }
  for (const auto& [name, value] :
       {std::pair{"vocab_size", model.vocab_size}, std::pair{"hidden_size", model.hidden_size},
        std::pair{"expert_intermediate_size", model.expert_intermediate_size},
        std::pair{"num_layers", model.num_layers}, std::pair{"num_heads", model.num_heads},
        std::pair{"num_kv_heads", model.num_kv_heads}, std::pair{"head_dim", model.head_dim},
        std::pair{"max_positions", model.max_positions},
        std::pair{"num_experts", model.num_experts}, std::pair{"top_k", model.top_k}}) {
    COTERIE_REQUIRE(value >= 1, model.family, ": ", name, " = ", value, " must be at least 1");
  }
  COTERIE_REQUIRE(model.top_k <= model.num_experts, model.family, ": top_k = ", model.top_k,
                  " exceeds num_experts = ", model.num_experts);
  COTERIE_REQUIRE(model.num_heads % model.num_kv_heads == 0, model.family,
                  ": num_heads = ", model.num_heads,
                  " does not divide by num_kv_heads = ", model.num_kv_heads);
  COTERIE_REQUIRE(config.is_gpt2() || model.head_dim % 2 == 0, model.family,
                  ": head_dim = ", model.head_dim, " must be even for the rotary embedding");
  COTERIE_REQUIRE(!config.is_gpt2() || (model.tied_head && model.num_kv_heads == model.num_heads),
                  "gpt2_moe: the head is tied and every head has keys of its own");
  COTERIE_REQUIRE(std::ranges::is_sorted(model.moe_layers) &&
                      (config.is_gpt2() || std::ssize(model.moe_layers) == model.num_layers),
                  model.family, ": moe_layers must be ascending, and all layers but in gpt2_moe");
  COTERIE_REQUIRE(model.rms_norm_eps > 0 && (config.is_gpt2() || model.rope_theta > 0),
                  model.family, ": rms_norm_eps and rope_theta must be above 0");
}

Json to_config_json(const TrainableConfig& config) {
  return config.is_gpt2() ? gpt2_json(config) : llama_json(config);
}

TrainableConfig read_trainable_config(const fs::path& model) {
  const fs::path path = fs::is_directory(model) ? model / "config.json" : model;
  COTERIE_REQUIRE(fs::exists(path), path.string(), ": no such file: not a model folder?");
  return trainable_config_from_json(read_json_file(path), path.string());
}

TrainableConfig trainable_config_from_json(const Json& document, const std::string& source) {
  ConfigKeys keys(document, source);
  const std::string family = keys.text("model_type");
  TrainableConfig config;
  if (family == "gpt2_moe") {
    config = read_gpt2(keys);
  } else if (family == "qwen3_moe") {
    config = read_qwen3(keys);
  } else {
    config.model = model_config_from_json(document, source);
    config.initializer_range = keys.optional_positive("initializer_range").value_or(0.02);
  }
  check_trainable_config(config);
  return config;
}

}  // namespace coterie::models
