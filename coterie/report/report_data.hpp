// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::report {

/// What a text is to the placements.
enum class TextRole {
  kFit,          ///< placements were made for it
  kHeldOut,      ///< of the same kinds, but not seen when placing
  kOtherDomain,  ///< of one kind alone, held out
};
/// "fit", "held_out", "other_domain".
const char* name_of(TextRole role);

/// A text on which every placement is measured.
struct TextSample {
  std::string name;  ///< as shown in a column: "held-out", "code"
  TextRole role = TextRole::kFit;
  std::uint64_t num_tokens = 0;
};

/// One placement of one layer on one text.
struct Measured {
  placement::LayerFigures figures;
  std::uint64_t bytes_sent =
      0;  ///< dispatch and combine, by the exchange's prediction; 0: not known

  bool operator==(const Measured&) const = default;
};

/// A run of the model over processes, compared with one process.
struct RunCheck {
  std::int32_t num_processes = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t bytes_sent = 0;       ///< counted
  std::uint64_t bytes_predicted = 0;  ///< from ids and placement
  bool bit_equal = false;             ///< to one process that is given the same placement
  double max_difference = 0;          ///< to one process without placement, over its max |logit|
  std::uint64_t num_flips = 0;        ///< routing choices that a near-tie turned round

  bool operator==(const RunCheck&) const = default;
};

/// One way to place the experts, with all that was measured of it.
struct PlacementReport {
  std::string name;         ///< of the algorithm: "contiguous", "occult", "coterie"
  std::string label;        ///< as shown: "contiguous", "Algorithm 1", "ours"
  std::string description;  ///< one sentence for a newcomer; may be empty
  std::vector<placement::LayerPlacement> layers;  ///< [num_layers]
  std::vector<std::vector<Measured>> measured;    ///< [num_layers][num_texts]
  std::optional<RunCheck> run = {};
};

/// What does not depend on the placement.
struct LayerReport {
  std::int32_t layer = 0;         ///< its number in the model
  routing::ReplicaBounds bounds;  ///< on the held-out text if there is one, else on the fitted
  Matrix<std::uint64_t> pairs;  ///< [E, E] co-activation counts (routing::count_pairs), fitted text
};

/// All that `coterie demo` shows.
struct ReportData {
  std::string title;
  std::int32_t num_devices = 0;
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  std::optional<double> load_cap = {};
  std::string baseline = "contiguous";  ///< name of the placement that others are compared with
  std::string chosen = "coterie";       ///< name of the placement that the job gives the user
  std::vector<TextSample> texts;
  std::vector<LayerReport> layers;
  std::vector<PlacementReport> placements;
  /// Lines of the section on where all this comes from: ("Model", "OLMoE, 6 layers"), ....
  std::vector<std::pair<std::string, std::string>> provenance;
  std::vector<std::string> notes;  ///< what the reader must know (dropped rows, flips, ...)
};

/// Everything except placements and pair counts, which have files of their own.
Json to_json(const ReportData& data);

/// Throws kInternal if tables have wrong sizes, or baseline, chosen or a fitted text is missing.
void check_report(const ReportData& data);

/// Figures of all layers together.
struct Summary {
  double replicas = 0;             ///< C_T, mean of the layers
  double bottleneck_replicas = 0;  ///< mean of the layers
  double load_imbalance = 0;       ///< mean of the layers
  double worst_load_imbalance = 0;
  double receive_imbalance = 0;  ///< mean of the layers
  std::uint64_t bytes_sent = 0;  ///< sum of the layers

  bool operator==(const Summary&) const = default;
};
Json to_json(const Summary& summary);

Summary summarise(const PlacementReport& placement, std::size_t text);

/// Mean of the layers' bounds.
routing::ReplicaBounds mean_bounds(const ReportData& data);

/// The text that headlines speak of: the first held-out one, else the first.
std::size_t headline_text(const ReportData& data);

/// The placement of that name; kInternal if there is none.
const PlacementReport& placement_named(const ReportData& data, const std::string& name);

}  // namespace coterie::report
