// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "coterie/models/models.hpp"
#include "tests/folders.hpp"

namespace coterie::models {

/// Where tests/python/make_random_models.py has put its models.
inline std::filesystem::path random_models_folder() {
  return tests::binary_dir() / "random_models";
}

inline std::vector<std::string> random_model_names() {
  return {"olmoe_seed0",       "olmoe_seed1",       "olmoe_norm",         "olmoe_norm_gqa",
          "olmoe_gqa_clip",    "olmoe_bias",        "olmoe_tied",         "olmoe_top1",
          "olmoe_all_experts", "olmoe_sharded",     "olmoe_fused",        "olmoe_bf16",
          "olmoe_f16",         "olmoe_square",      "mixtral_seed0",      "mixtral_seed1",
          "mixtral_head_dim",  "mixtral_window",    "mixtral_tied_fused", "mixtral_theta",
          "qwen2_seed0",       "qwen2_sparse",      "qwen3_seed0",        "qwen3_bias_fused",
          "deepseek_seed0",    "deepseek_v2_lite",  "deepseek_v2_groups", "deepseek_v2_bias",
          "deepseek_v3_seed0", "deepseek_v3_plain", "deepseek_v3_bf16",   "deepseek_v3_fp8",
          "glm4_seed0",        "glm4_qk_norm"};
}

/// Tokens of a random model and what transformers made of them.
class ExpectedOutputs {
 public:
  explicit ExpectedOutputs(const std::string& name)
      : file_(random_models_folder() / (name + ".expected.safetensors")) {
    for (int n = 0; file_.find("tokens." + std::to_string(n)) != nullptr; ++n) {
      const auto ids = integers("tokens." + std::to_string(n));
      batch_.emplace_back(ids.begin(), ids.end());
    }
  }

  [[nodiscard]] Batch batch() const { return batch_; }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    return values<float>(name);
  }
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name) const {
    return values<std::int64_t>(name);
  }

 private:
  template <typename T>
  [[nodiscard]] std::vector<T> values(const std::string& name) const {
    const auto bytes = file_.bytes(*file_.find(name));
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  SafetensorsFile file_;
  std::vector<std::vector<std::int32_t>> batch_;
};

}  // namespace coterie::models
