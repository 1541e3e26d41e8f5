// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/base/json.hpp"
#include "tests/models/scratch_folder.hpp"

namespace coterie::models {
namespace {

Json olmoe_json() {
  return parse_json(R"({"model_type": "olmoe", "vocab_size": 97, "hidden_size": 32,
    "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts": 8,
    "num_experts_per_tok": 3, "norm_topk_prob": true, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "clip_qkv": null,
    "attention_bias": false, "tie_word_embeddings": false, "dtype": "float32",
    "architectures": ["OlmoeForCausalLM"], "_name_or_path": "x"})",
                    "test");
}

ModelConfig read(const ScratchFolder& folder, const Json& json) {
  write_json_file(folder / "config.json", json);
  return read_model_config(folder.path());
}

TEST(ModelConfig, SizesAndSwitchesAreRead) {
  const ScratchFolder folder;
  Json json = olmoe_json();
  const ModelConfig config = read(folder, json);
  EXPECT_EQ(config.family, "olmoe");
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_TRUE(config.renormalise);
  EXPECT_FALSE(config.clip_qkv.has_value());
  EXPECT_EQ(config.qk_norm, QkNorm::kWholeProjection);
  EXPECT_EQ(config.moe_layers, (std::vector<std::int32_t>{0, 1, 2}));
  json["clip_qkv"] = 8.0;
  EXPECT_EQ(read(folder, json).clip_qkv, 8.0);
}

TEST(ModelConfig, SpellingsOfBothTransformersVersionsMeanTheSame) {
  const ScratchFolder folder;
  const ModelConfig config = read(folder, olmoe_json());
  for (const char* spelling : {"num_local_experts", "n_routed_experts"}) {
    Json json = olmoe_json();
    json.erase("num_experts");
    json[spelling] = 8;
    EXPECT_EQ(read(folder, json), config) << spelling;
  }
  Json old = olmoe_json();
  old.erase("rope_parameters");
  old.erase("dtype");
  old["torch_dtype"] = "float32";
  old["rope_theta"] = 10000.0;
  old["rope_scaling"] = nullptr;
  EXPECT_EQ(read(folder, old), config);
}

struct Change {
  const char* key;
  Json value;
  ErrorCode code;
  std::vector<std::string> says;
};

TEST(ModelConfig, WhatIsWrongOrUnknownIsNamed) {
  const ScratchFolder folder;
  const auto bad = ErrorCode::kBadInput;
  const auto unsupported = ErrorCode::kUnsupported;
  const std::vector<Change> changes = {
      {"model_type", "gpt_oss", unsupported, {"gpt_oss", "mixtral, olmoe"}},
      {"model_type", Json::array(), bad, {"model_type"}},
      {"num_experts", 0, bad, {"num_experts = 0", "not a mixture-of-experts"}},
      {"num_experts", 70000, bad, {"70000"}},
      {"num_experts_per_tok", 9, bad, {"num_experts_per_tok = 9", "num_experts = 8"}},
      {"num_experts_per_tok", 0, bad, {"num_experts_per_tok"}},
      {"num_local_experts", 9, bad, {"num_experts = 8", "num_local_experts = 9"}},
      {"hidden_act", "gelu", unsupported, {"hidden_act", "gelu", "silu"}},
      {"n_group", 8, unsupported, {"n_group = 8"}},
      {"quantization_config", Json{{"bits", 4}}, unsupported, {"quantization_config"}},
      {"shared_expert_intermediate_size",
       64,
       unsupported,
       {"shared_expert_intermediate_size = 64"}},
      {"sliding_window", 16, unsupported, {"sliding_window = 16"}},
      {"head_dim", 16, bad, {"head_dim = 16", "qk-norm"}},
      {"num_key_value_heads", 3, bad, {"num_key_value_heads = 3"}},
      {"hidden_size", -1, bad, {"hidden_size"}},
      {"hidden_size", "32", bad, {"hidden_size", "whole number"}},
      {"rms_norm_eps", 0, bad, {"rms_norm_eps"}},
      {"rope_scaling",
       Json{{"rope_type", "yarn"}, {"factor", 4.0}},
       bad,
       {"original_max_position_embeddings"}},
      {"rope_scaling", Json{{"rope_type", "longrope"}}, unsupported, {"longrope"}},
      {"rope_theta", 5.0, bad, {"rope_theta = 5", "10000"}},
      {"norm_topk_prob", 1, bad, {"norm_topk_prob", "true or false"}},
  };
  for (const Change& change : changes) {
    Json json = olmoe_json();
    json[change.key] = change.value;
    const auto [code, message] = refusal_of([&] { read(folder, json); });
    EXPECT_EQ(code, change.code) << change.key << ": " << message;
    for (const std::string& part : change.says) {
      EXPECT_NE(message.find(part), std::string::npos) << change.key << ": " << message;
    }
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
}

TEST(ModelConfig, AMissingKeyIsNamed) {
  const ScratchFolder folder;
  for (const char* key : {"model_type", "vocab_size", "hidden_size", "intermediate_size",
                          "num_hidden_layers", "num_attention_heads", "num_experts",
                          "num_experts_per_tok", "rms_norm_eps", "max_position_embeddings"}) {
    Json json = olmoe_json();
    json.erase(key);
    const auto [code, message] = refusal_of([&] { read(folder, json); });
    EXPECT_EQ(code, ErrorCode::kBadInput) << key;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

TEST(ModelConfig, MixtralAlwaysRenormalisesAndMayHaveAWindow) {
  const ScratchFolder folder;
  Json json = olmoe_json();
  for (const char* key : {"norm_topk_prob", "clip_qkv", "attention_bias"}) {
    json.erase(key);
  }
  json["model_type"] = "mixtral";
  json["head_dim"] = 12;
  json["sliding_window"] = 7;
  json["router_jitter_noise"] = 0.1;
  const ModelConfig config = read(folder, json);
  EXPECT_TRUE(config.renormalise);
  EXPECT_EQ(config.head_dim, 12);
  EXPECT_EQ(config.sliding_window, 7);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
}

}  // namespace
}  // namespace coterie::models
