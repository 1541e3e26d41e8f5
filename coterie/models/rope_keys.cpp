// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/models/config_keys.hpp"

namespace coterie::models {
namespace {

/// Fills `yarn` from one key; false if YaRN has no such key.
bool read_yarn_key(const std::string& name, const JsonReader& value, Yarn& yarn) {
  if (name == "factor") {
    yarn.factor = value.as_double();
  } else if (name == "original_max_position_embeddings") {
    yarn.original_positions = value.as_int(1, 1LL << 40U);
  } else if (name == "beta_fast") {
    yarn.beta_fast = value.as_double();
  } else if (name == "beta_slow") {
    yarn.beta_slow = value.as_double();
  } else if (name == "mscale") {
    yarn.mscale = value.as_double();
  } else if (name == "mscale_all_dim") {
    yarn.mscale_all_dim = value.as_double();
  } else if (name == "attention_factor") {
    yarn.attention_factor = value.as_double();
  } else if (name == "truncate") {
    yarn.truncate = value.as_bool();
  } else {
    return false;
  }
  return true;
}

void set_rotary_dim(double share, const std::string& place, ModelConfig& config) {
  COTERIE_REQUIRE(share > 0 && share <= 1, place, ": partial_rotary_factor = ", share,
                  " must be above 0 and at most 1");
  config.rotary_dim.reset();
  if (share < 1) {
    config.rotary_dim =
        static_cast<std::int64_t>(std::floor(static_cast<double>(config.head_dim) * share));
  }
}

}  // namespace

void ConfigKeys::read_rope_object(const std::string& key, ModelConfig& config) {
  const Json& rope = *document_->find(key);
  if (!rope.is_object()) {
    JsonReader(rope, file_, "/" + key).refuse("an object");
  }
  const Json* kind = rope.contains("rope_type") ? &rope["rope_type"]
                     : rope.contains("type")    ? &rope["type"]
                                                : nullptr;
  const bool is_yarn = kind != nullptr && *kind == "yarn";
  if (kind != nullptr && !is_yarn && *kind != "default") {
    unsupported(key + "/rope_type", *kind, "the rotary embeddings known here are default and yarn");
  }
  Yarn yarn;
  for (const auto& [name, value] : rope.items()) {
    const JsonReader reader(value, file_, "/" + key + "/" + name);
    if (name == "rope_type" || name == "type" || value.is_null()) {
      continue;
    }
    if (name == "rope_theta") {
      const double theta = reader.as_double();
      COTERIE_REQUIRE(theta > 0, file_, ": ", key, "/rope_theta = ", theta, " must be above 0");
      COTERIE_REQUIRE(config.rope_theta == 0 || config.rope_theta == theta, file_,
                      ": rope_theta = ", config.rope_theta, " and ", key, "/rope_theta = ", theta,
                      " contradict each other");
      config.rope_theta = theta;
    } else if (name == "partial_rotary_factor") {
      set_rotary_dim(reader.as_double(), file_, config);
    } else if (!is_yarn || !read_yarn_key(name, reader, yarn)) {
      unsupported(key + "/" + name, value, "this kind of rotary embedding has no such key here");
    }
  }
  if (is_yarn) {
    COTERIE_REQUIRE(yarn.factor >= 1, file_, ": ", key, "/factor = ", yarn.factor,
                    " must be at least 1");
    COTERIE_REQUIRE(yarn.original_positions >= 1, file_, ": ", key,
                    "/original_max_position_embeddings is missing");
    COTERIE_REQUIRE(yarn.beta_fast > 0 && yarn.beta_slow > 0, file_, ": ", key,
                    ": beta_fast and beta_slow must be above 0");
    config.yarn = yarn;
  }
}

void ConfigKeys::read_rope(ModelConfig& config) {
  config.rope_theta = optional_positive("rope_theta").value_or(0);
  if (const auto share = optional_positive("partial_rotary_factor")) {
    set_rotary_dim(*share, file_, config);
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (find({key}) != nullptr) {
      read_rope_object(key, config);
    }
  }
  COTERIE_REQUIRE(config.rope_theta > 0, file_,
                  ": neither \"rope_parameters\" nor \"rope_theta\" is there");
}

std::optional<std::array<std::int64_t, 2>> ConfigKeys::fp8_blocks() {
  const Json* quantization = find({"quantization_config"});
  if (quantization == nullptr) {
    return std::nullopt;
  }
  const Json method =
      quantization->is_object() ? quantization->value("quant_method", Json()) : Json();
  const Json blocks =
      quantization->is_object() ? quantization->value("weight_block_size", Json()) : Json();
  const bool is_known = method == "fp8" && blocks.is_array() && blocks.size() == 2;
  if (!is_known) {
    unsupported("quantization_config", *quantization,
                "only fp8 with weight_block_size [rows, columns] is known here");
  }
  const JsonReader reader(blocks, file_, "/quantization_config/weight_block_size");
  std::array<std::int64_t, 2> sizes{};
  for (std::size_t i = 0; i < 2; ++i) {
    sizes[i] =
        JsonReader(blocks[i], file_, "/quantization_config/weight_block_size").as_int(1, 1 << 20);
  }
  return sizes;
}

std::vector<std::int64_t> ConfigKeys::integers(const char* key) {
  std::vector<std::int64_t> values;
  const Json* list = find({key});
  if (list == nullptr) {
    return values;
  }
  const std::string place = std::string("/") + key;
  if (!list->is_array()) {
    JsonReader(*list, file_, place).refuse("a list");
  }
  for (const Json& value : *list) {
    values.push_back(JsonReader(value, file_, place).as_int(0, 1LL << 40U));
  }
  return values;
}

std::int64_t ConfigKeys::count(std::initializer_list<const char*> spellings, std::int64_t absent) {
  const Json* value = find(spellings);
  return value == nullptr ? absent
                          : JsonReader(*value, file_, std::string("/") + *spellings.begin())
                                .as_int(0, 1LL << 40U);
}

}  // namespace coterie::models
