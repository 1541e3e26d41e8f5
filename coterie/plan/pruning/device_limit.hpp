// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning_options.hpp"

namespace coterie::pruning {

/// The experts that a token's router chose, with their scores.
struct Picks {
  std::span<const std::int32_t> ids;  ///< [k] distinct, by descending score; -1: no expert
  std::span<const float> scores;      ///< [k] >= 0; not read beside -1
};

/// Chooses the devices of one token. Immutable after construction; thread-safe.
class DeviceLimit {
 public:
  /// Copies what it needs. Throws as check_layer_placement and check_pruning_options do.
  DeviceLimit(const placement::LayerPlacement& placement, DeviceChoice choice,
              const Budget& budget);

  /// The devices that the token keeps, ascending. All that its experts need if these are at most
  /// max_devices (with copies: if a cover of so few exists).
  ///
  /// kFirstSeen: experts by descending score; an expert without a copy on a kept device adds the
  /// lowest device that holds it, until max_devices are kept.
  ///
  /// kKeptMass: the set of at most max_devices devices with the largest sum of scores of picks that
  /// have a copy there; sums in double in the order of picks. Where every expert has one copy: the
  /// max_devices devices of the largest sums, ties to the lowest device. With copies: of equal sums
  /// the fewest devices, then the lexicographically lowest; all sets are tried up to kMaxSets sets,
  /// else devices are added one by one, each time the one that adds most. Then devices are dropped
  /// by Budget::min_share: from the one that adds least (the highest of equals), while it adds less
  /// than that share of the token's score and more than min_devices are left.
  [[nodiscard]] std::vector<std::int32_t> choose(const Picks& picks) const;

  /// For each device that a min_share above this limit's own could still drop, in the order in
  /// which they go: the shares above which they do, ascending. What ThresholdFit counts.
  [[nodiscard]] std::vector<double> drop_thresholds(const Picks& picks) const;

  /// Sum of the scores of picks that have a copy on one of `devices`.
  [[nodiscard]] double kept_mass(const Picks& picks, std::span<const std::int32_t> devices) const;
  /// Whether an expert has a copy on one of `devices`.
  [[nodiscard]] bool is_on(std::int32_t expert, std::span<const std::int32_t> devices) const;

  [[nodiscard]] std::int32_t num_experts() const { return num_experts_; }
  [[nodiscard]] const Budget& budget() const { return budget_; }

  static constexpr std::int64_t kMaxSets = 20000;

 private:
  [[nodiscard]] std::vector<std::int32_t> choose_first_seen(const Picks& picks) const;
  [[nodiscard]] std::vector<std::int32_t> choose_kept_mass(const Picks& picks) const;
  [[nodiscard]] std::vector<std::int32_t> candidates(const Picks& picks) const;
  [[nodiscard]] std::vector<std::int32_t> best_set(const Picks& picks,
                                                   const std::vector<std::int32_t>& devices) const;
  [[nodiscard]] std::vector<std::int32_t> largest(const Picks& picks,
                                                  std::vector<std::int32_t> devices) const;
  [[nodiscard]] std::vector<std::int32_t> greedy_set(
      const Picks& picks, const std::vector<std::int32_t>& devices) const;
  /// Drops devices as `choose` says; returns the threshold of each: it is dropped by any
  /// min_share above that, so they never fall.
  std::vector<double> drop(const Picks& picks, double min_share,
                           std::vector<std::int32_t>& devices) const;

  std::int32_t num_experts_ = 0;
  bool single_copies_ = true;
  DeviceChoice choice_;
  Budget budget_;
  std::vector<std::vector<std::int32_t>> devices_of_;  // [num_experts] ascending
};

}  // namespace coterie::pruning
