// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/family.hpp"

namespace coterie::models {
namespace {

void replace_number(std::string& text, std::string_view mark, std::int64_t number) {
  const auto at = text.find(mark);
  if (at != std::string::npos) {
    text.replace(at, mark.size(), std::to_string(number));
  }
}

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> kFamilies = {
      deepseek_family(), deepseek_v2_family(), deepseek_v3_family(), glm4_moe_family(),
      mixtral_family(),  olmoe_family(),       qwen2_moe_family(),   qwen3_moe_family(),
  };
  return kFamilies;
}

TensorNames usual_names() {
  TensorNames names;
  const std::string expert = "model.layers.{layer}.mlp.experts.{expert}.";
  names.router = {"model.layers.{layer}.mlp.gate.weight"};
  names.expert_gate = {expert + "gate_proj.weight"};
  names.expert_up = {expert + "up_proj.weight"};
  names.expert_down = {expert + "down_proj.weight"};
  return names;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.push_back(family.model_type);
  }
  return names;
}

const Family& family_named(const std::string& model_type, const std::string& file) {
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == model_type) {
      return family;
    }
    known += (known.empty() ? "" : ", ") + family.model_type;
  }
  fail(ErrorCode::kUnsupported, file, ": model_type = \"", model_type,
       "\" is not supported; families known here: ", known);
}

std::string fill_name(const std::string& pattern, std::int64_t layer, std::int64_t expert) {
  std::string name = pattern;
  replace_number(name, "{layer}", layer);
  if (expert >= 0) {
    replace_number(name, "{expert}", expert);
  }
  return name;
}

}  // namespace coterie::models
