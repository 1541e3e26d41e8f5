// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/model_config.hpp"

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/config_keys.hpp"
#include "coterie/models/family.hpp"

namespace coterie::models {
namespace {

namespace fs = std::filesystem;

void read_head_dim(ConfigKeys& keys, ModelConfig& config) {
  const auto head_dim = keys.optional_size({"head_dim"});
  COTERIE_REQUIRE(head_dim.has_value() || config.hidden_size % config.num_heads == 0, keys.file(),
                  ": hidden_size = ", config.hidden_size, " does not divide by num_attention_heads",
                  " = ", config.num_heads, ", and head_dim is not given");
  config.head_dim = head_dim.value_or(config.hidden_size / config.num_heads);
}

void read_sizes(ConfigKeys& keys, ModelConfig& config) {
  config.vocab_size = keys.size({"vocab_size"});
  config.hidden_size = keys.size({"hidden_size"});
  config.num_layers = keys.size({"num_hidden_layers"});
  config.num_heads = keys.size({"num_attention_heads"});
  config.num_kv_heads = keys.optional_size({"num_key_value_heads"}).value_or(config.num_heads);
  read_head_dim(keys, config);
  config.max_positions = keys.size({"max_position_embeddings"});
  const auto num_experts =
      keys.optional_size({"num_experts", "num_local_experts", "n_routed_experts"});
  COTERIE_REQUIRE(num_experts.has_value(), keys.file(),
                  ": num_experts is missing: not a mixture-of-experts model");
  config.num_experts = *num_experts;
  config.top_k = keys.size({"num_experts_per_tok"});
  config.rms_norm_eps = keys.positive("rms_norm_eps");
  config.tied_head = keys.flag("tie_word_embeddings", false);
}

void check_router(const ModelConfig& config, const std::string& file) {
  const RouterOptions& router = config.router;
  COTERIE_REQUIRE(config.num_experts % router.num_groups == 0, file,
                  ": n_routed_experts = ", config.num_experts,
                  " does not divide by n_group = ", router.num_groups);
  const std::int64_t in_group = config.num_experts / router.num_groups;
  COTERIE_REQUIRE(router.top_groups <= router.num_groups, file,
                  ": topk_group = ", router.top_groups, " exceeds n_group = ", router.num_groups);
  COTERIE_REQUIRE(config.top_k <= router.top_groups * in_group, file,
                  ": num_experts_per_tok = ", config.top_k, " exceeds the ",
                  router.top_groups * in_group, " experts of topk_group = ", router.top_groups,
                  " groups");
  COTERIE_REQUIRE(router.group_score != GroupScore::kTwoBest || in_group >= 2, file, ": groups of ",
                  in_group, " experts have no two best ones");
}

void check_sizes(const ModelConfig& config, const std::string& file) {
  COTERIE_REQUIRE(config.top_k <= config.num_experts, file,
                  ": num_experts_per_tok = ", config.top_k,
                  " exceeds num_experts = ", config.num_experts);
  COTERIE_REQUIRE(config.num_heads % config.num_kv_heads == 0, file,
                  ": num_attention_heads = ", config.num_heads,
                  " does not divide by num_key_value_heads = ", config.num_kv_heads);
  COTERIE_REQUIRE(config.rotary_width() % 2 == 0 && config.rotary_width() <= config.head_dim, file,
                  ": head_dim = ", config.head_dim, ", of which ", config.rotary_width(),
                  " columns turn, must be even for the rotary embedding");
  COTERIE_REQUIRE(config.qk_norm != QkNorm::kWholeProjection ||
                      config.head_dim * config.num_heads == config.hidden_size,
                  file, ": head_dim = ", config.head_dim,
                  " times num_attention_heads = ", config.num_heads,
                  " must be hidden_size = ", config.hidden_size, " for this family's qk-norm");
  check_router(config, file);
  constexpr std::int64_t kMaxExperts = 65'535;  // routing traces hold ids in 16 bits
  COTERIE_REQUIRE(config.num_experts < kMaxExperts, file, ": num_experts = ", config.num_experts,
                  ": at most ", kMaxExperts - 1, " are supported");
}

}  // namespace

ModelConfig read_model_config(const fs::path& model) {
  const fs::path path = fs::is_directory(model) ? model / "config.json" : model;
  COTERIE_REQUIRE(fs::exists(path), path.string(), ": no such file: not a model folder?");
  return model_config_from_json(read_json_file(path), path.string());
}

ModelConfig model_config_from_json(const Json& document, const std::string& source) {
  ConfigKeys keys(document, source);
  ModelConfig config;
  config.family = keys.text("model_type");
  const Family& family = family_named(config.family, source);
  if (const auto experts = document.find("num_experts");
      experts != document.end() && *experts == 0) {
    fail(ErrorCode::kBadInput, source, ": num_experts = 0: not a mixture-of-experts model");
  }
  read_sizes(keys, config);
  keys.only("hidden_act", "silu");
  config.fp8_blocks = keys.fp8_blocks();
  family.read_switches(keys, config);
  keys.read_rope(config);
  keys.finish();
  check_sizes(config, source);
  if (!family.has_dense_layers) {
    set_moe_layers(config, [](std::int64_t) { return true; });
  }
  COTERIE_REQUIRE(!config.moe_layers.empty(), source, ": no layer is a mixture of experts");
  return config;
}

}  // namespace coterie::models
