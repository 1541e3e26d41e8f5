// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "coterie/base/log.hpp"
#include "coterie/plan/placement/placement.hpp"

namespace coterie::models {

/// Writes a checkpoint of the same model with experts in another order, so that the placement that
/// every engine uses by itself (experts in checkpoint order, equally many a device) becomes the
/// given one. In each MoE layer, the expert with new number j is the j-th of
/// `LayerPlacement::physical_to_logical()`; router rows and all per-expert tensors (scales and
/// biases too, fused or one an expert) move along. Tensor by tensor, so memory stays small. The
/// other files (config, tokenizer) are copied; weights in other formats are left out with a
/// warning, for they would keep the old order. `coterie_permutation.json` says what went where.
///
/// Refused (kBadInput): a placement with replicas or devices of different sizes, one of another
/// model, an output folder that is not empty. The output appears whole or not at all.
void permute_checkpoint(const std::filesystem::path& model, const placement::Placement& placement,
                        const std::filesystem::path& out,
                        Progress& progress = NoProgress::instance());

inline constexpr const char* kPermutationName = "coterie_permutation.json";

}  // namespace coterie::models
