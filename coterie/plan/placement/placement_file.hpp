// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/placement/measure.hpp"
#include "coterie/plan/placement/options.hpp"

namespace coterie::placement {

/// One MoE layer of a model and where its experts live.
struct PlacedLayer {
  std::int32_t layer = 0;  ///< its number in the model, dense layers counted too
  LayerPlacement placement;
  std::optional<LayerFigures> fit;       ///< on the rows that the placement was fitted to
  std::optional<LayerFigures> held_out;  ///< on rows that it has not seen

  bool operator==(const PlacedLayer&) const = default;
};

/// Where all experts of a model live: what a placement file holds (docs/file_formats.md).
struct Placement {
  std::string algorithm = "contiguous";
  PlacementOptions options;
  std::string model_fingerprint;    ///< of the model that was traced; empty: not known
  std::string trace_fingerprint;    ///< of the rows that it was fitted to; empty: none
  std::string fit_rows;             ///< which rows those were (name_of(FitRows)); empty: none
  std::vector<PlacedLayer> layers;  ///< ascending `layer`, all with the same number of devices

  [[nodiscard]] std::int32_t num_devices() const { return options.num_devices; }
  /// The placement of the model's layer number `layer`; nullptr if it is no MoE layer.
  [[nodiscard]] const LayerPlacement* find(std::int32_t layer) const;

  bool operator==(const Placement&) const = default;
};

/// The linear placement of every layer in `layers`, for a model with `num_experts` in each.
Placement contiguous_placement_of(const std::vector<std::int32_t>& layers, std::int32_t num_experts,
                                  std::int32_t num_devices);

/// Reads and checks a placement file. kBadInput names file, path inside it and the breach.
Placement read_placement(const std::filesystem::path& path);

/// The text of the file; the same placement gives the same bytes.
std::string format_placement(const Placement& placement);

/// Checks and writes it atomically.
void write_placement(const std::filesystem::path& path, const Placement& placement);

}  // namespace coterie::placement
