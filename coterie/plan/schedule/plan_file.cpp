// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/plan_file.hpp"

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::schedule {
namespace {

constexpr const char* kFormat = "coterie-plan";
constexpr std::int64_t kVersion = 1;

}  // namespace

double ModelPlan::predicted_s() const {
  double sum = 0;
  for (const PlannedLayer& layer : layers) {
    sum += layer.plan.predicted_s();
  }
  return sum;
}

Json to_json(const ModelPlan& plan) {
  Json layers = Json::array();
  for (const PlannedLayer& layer : plan.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"forward", to_json(layer.plan.forward)},
                      {"backward", to_json(layer.plan.backward)}});
  }
  return {{"format", kFormat},          {"version", kVersion},
          {"schedule", plan.schedule},  {"cluster", plan.cluster},
          {"engine", plan.engine},      {"predicted_s", plan.predicted_s()},
          {"layers", std::move(layers)}};
}

ModelPlan model_plan_from(const Json& json, const std::string& source) {
  const JsonReader reader(json, source);
  COTERIE_REQUIRE(reader.at("format").as_string() == kFormat, source,
                  ": this is no plan: /format is \"", reader.at("format").as_string(),
                  "\" instead of \"", kFormat, "\"");
  const std::int64_t version = reader.at("version").as_int();
  COTERIE_REQUIRE(version == kVersion, source, ": /version: ", version,
                  " is not known; this build reads version ", kVersion);
  ModelPlan plan;
  plan.schedule = reader.at("schedule").as_string();
  plan.cluster = reader.at("cluster").as_string();
  plan.engine = reader.at("engine").as_string();
  const JsonReader layers = reader.at("layers");
  const std::size_t count = layers.size();
  for (std::size_t i = 0; i < count; ++i) {
    const JsonReader entry = layers.at(i);
    const std::int64_t low = plan.layers.empty() ? 0 : plan.layers.back().layer + 1;
    const auto layer = static_cast<std::int32_t>(entry.at("layer").as_int(low, 1 << 20));
    plan.layers.push_back({layer, layer_plan_from(entry)});
    plan.layers.back().plan.schedule = plan.schedule;
  }
  return plan;
}

ModelPlan read_plan(const std::filesystem::path& path) {
  return model_plan_from(read_json_file(path), path.string());
}

void write_plan(const std::filesystem::path& path, const ModelPlan& plan) {
  const Json json = to_json(plan);
  model_plan_from(json, path.string());
  write_text_file(path, format_json(json));
}

}  // namespace coterie::schedule
