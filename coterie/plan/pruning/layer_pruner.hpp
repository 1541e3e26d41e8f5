// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/device_limit.hpp"
#include "coterie/plan/pruning/pruning_options.hpp"
#include "coterie/plan/pruning/similarity.hpp"

namespace coterie::pruning {

/// What the router says of one token, for all experts of the layer.
struct TokenScores {
  std::span<const float>
      selection;                   ///< [E] what it ranks experts by (higher first, ties: lower id)
  std::span<const float> weights;  ///< [E] >= 0: what experts' weights are made of
};

/// Limits the tokens of one layer to few devices: the policy, and the reference for its application
/// on devices. Immutable after construction; thread-safe.
///
///   devices = DeviceLimit::choose(picks with their weights)
///   kNone         picks elsewhere become -1
///   kRouterScore  as many experts as there were picks: those on `devices` that rank highest,
///                 in that order; -1 if there are too few
///   kSimilarity   picks on `devices` stay in their slots. Then, in slot order, each other slot
///   gets
///                 the most similar expert to its pick that is on `devices` and has no slot yet
///                 (ties: lower id); -1 if there is none
///   weight        the expert's own score; kKeepSum multiplies all by (sum of the picks' scores) /
///                 (sum of the new ones'), both in double in slot order
///
/// Picks on devices always stay, since they rank above all other experts there. So a token that
/// used d devices uses exactly min(d, max_devices) (without min_share, one copy an expert). A token
/// whose picks are all on the kept devices is left as it is, bit for bit.
class LayerPruner {
 public:
  /// `similarity` [E, E] is needed for kSimilarity (kBadInput otherwise); copied.
  LayerPruner(const placement::LayerPlacement& placement, const PruningOptions& options,
              const Budget& budget, const SimilarityTable* similarity = nullptr);

  /// Rewrites ids [k] and weights [k] of one token in place. On entry: what the router chose, by
  /// descending rank, weights as in `scores.weights`. Returns whether anything changed.
  bool prune(const TokenScores& scores, std::span<std::int32_t> ids,
             std::span<float> weights) const;

  [[nodiscard]] const DeviceLimit& limit() const { return limit_; }
  [[nodiscard]] Weights weights() const { return weights_; }

 private:
  using Devices = std::vector<std::int32_t>;
  void replace_by_score(const TokenScores& scores, const Devices& devices,
                        std::span<std::int32_t> ids) const;
  void replace_by_similarity(const Devices& devices, std::span<std::int32_t> ids) const;

  DeviceLimit limit_;
  Replacement replacement_;
  Weights weights_;
  std::vector<std::vector<std::int32_t>> most_similar_;  // [E] the others, most similar first
};

}  // namespace coterie::pruning
