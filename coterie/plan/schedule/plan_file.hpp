// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/plan/schedule/layer_plan.hpp"

namespace coterie::schedule {

/// The plan of one MoE layer of a model.
struct PlannedLayer {
  std::int32_t layer = 0;  ///< its number in the model
  LayerPlan plan;

  bool operator==(const PlannedLayer&) const = default;
};

/// How a model's layers are carried out on a cluster: what a plan file holds
/// (docs/file_formats.md).
struct ModelPlan {
  std::string schedule;
  std::string cluster;  ///< name of the profile it was made from
  std::string engine;
  std::vector<PlannedLayer> layers;  ///< ascending

  [[nodiscard]] double predicted_s() const;
  bool operator==(const ModelPlan&) const = default;
};

Json to_json(const ModelPlan& plan);
/// Reads what to_json wrote; kBadInput names file and place.
ModelPlan model_plan_from(const Json& json, const std::string& source);
ModelPlan read_plan(const std::filesystem::path& path);
/// Written atomically; the same plan gives the same bytes.
void write_plan(const std::filesystem::path& path, const ModelPlan& plan);

}  // namespace coterie::schedule
