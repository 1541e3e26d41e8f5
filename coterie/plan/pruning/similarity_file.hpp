// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coterie/plan/pruning/similarity.hpp"

namespace coterie::pruning {

/// How alike the experts of each MoE layer of a model are: what `coterie similarity` writes.
struct ModelSimilarity {
  std::string model_fingerprint;  ///< empty: not known
  Measure measure = Measure::kCosine;
  std::string values;                   ///< what was compared: "router_logits" or "expert_outputs"
  std::uint64_t num_tokens = 0;         ///< of the profile
  std::vector<std::int32_t> layers;     ///< number of each MoE layer in the model, ascending
  std::vector<SimilarityTable> tables;  ///< [layers] of [E, E]

  bool operator==(const ModelSimilarity&) const = default;
};

/// Throws kBadInput naming `where`, layer and breach: not one table a layer, layers not ascending,
/// tables that are not square, symmetric, within [-1, 1] (rounding apart) or of different sizes.
void check_similarity(const ModelSimilarity& similarity, const std::string& where);

/// JSON, atomically; docs/file_formats.md describes it.
void write_similarity(const std::filesystem::path& path, const ModelSimilarity& similarity);
/// kBadInput and kIo name the file, and the place in it.
ModelSimilarity read_similarity(const std::filesystem::path& path);

}  // namespace coterie::pruning
