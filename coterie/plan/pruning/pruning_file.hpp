// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/measure_pruning.hpp"
#include "coterie/plan/pruning/pruning_options.hpp"
#include "coterie/plan/pruning/similarity_file.hpp"

namespace coterie::pruning {

/// A pruning policy for one placement of one model: what `coterie prune` writes.
struct Policy {
  std::string model_fingerprint;        ///< empty: not known
  std::int32_t num_devices = 0;         ///< of the placement
  std::vector<std::int32_t> layers;     ///< number of each MoE layer in the model, ascending
  PruningOptions options;               ///< its layer_budgets are in the order of `layers`
  std::vector<PruningFigures> figures;  ///< [layers] on the trace it was made with, or empty

  bool operator==(const Policy&) const = default;
};

/// kBadInput naming `where` if figures or layer budgets are not one a layer, or layers do not
/// ascend.
void check_policy(const Policy& policy, const std::string& where);

Json to_json(const PruningFigures& figures);

/// JSON, atomically; docs/file_formats.md describes it.
void write_policy(const std::filesystem::path& path, const Policy& policy);
/// kBadInput and kIo name the file, and the place in it.
Policy read_policy(const std::filesystem::path& path);

/// kBadInput, naming both values, if policy and placement (and similarity, where given) are of
/// different models, layers or numbers of devices.
void check_same_model(const Policy& policy, const placement::Placement& placement,
                      const ModelSimilarity* similarity);

}  // namespace coterie::pruning
