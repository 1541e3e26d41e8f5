// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/layer_placement.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// Co-activation counts of one layer that forget: a token seen n tokens ago counts decay^n, so that
/// the counts follow a routing that drifts. Not thread-safe.
class CoactivationCounts {
 public:
  /// half_life > 0: tokens after which a token counts half. kBadInput otherwise.
  CoactivationCounts(std::int32_t num_experts, double half_life_tokens);

  /// Adds tokens, oldest first: ids [tokens, top_k], -1: no expert. kBadInput for ids out of range.
  void add(std::span<const std::int32_t> ids, std::int32_t top_k);
  /// Adds what another rank counted over the same steps; both must have seen as many tokens for the
  /// sum to weigh them alike.
  void merge(const CoactivationCounts& other);

  /// Decayed number of tokens.
  [[nodiscard]] double num_tokens() const { return num_tokens_; }
  /// [E] decayed picks of each expert; the diagonal of `pairs`.
  [[nodiscard]] std::vector<double> load() const;
  /// [E, E] symmetric, decayed tokens that picked both.
  [[nodiscard]] const Matrix<double>& pairs() const { return pairs_; }
  /// The pairs as sets of two for place_layer, counts rounded after scaling the largest to 1e6.
  [[nodiscard]] routing::ExpertSets pair_sets() const;

 private:
  double decay_;
  double weight_ = 1;  ///< of the next token; grows, and all is scaled down before it overflows
  double num_tokens_ = 0;
  Matrix<double> pairs_;
  void rescale();
};

/// What the monitor says of a layer.
enum class DriftVerdict : std::uint8_t {
  kSteady,  ///< nothing to do
  kLoad,    ///< the busiest device has too much: looked at first, since all wait for it
  kSpread,  ///< C_T has grown: tokens need more devices than they did
};
std::string_view name_of(DriftVerdict verdict) noexcept;

struct MonitorOptions {
  double half_life_tokens = 1e5;
  double max_load = 1.25;       ///< busiest device's picks over the mean
  double max_growth = 0.05;     ///< of C_T over that when the placement came
  double warm_up_tokens = 1e4;  ///< before anything is said, and before the reference C_T is taken
  double cool_down_tokens = 1e5;  ///< between two verdicts that ask for a change
  bool operator==(const MonitorOptions&) const = default;
};

/// Watches one layer of a placement while it serves or trains: load first, C_T second. Single
/// copies. Not thread-safe.
class DriftMonitor {
 public:
  DriftMonitor(LayerPlacement placement, const MonitorOptions& options);

  /// Adds tokens (as CoactivationCounts::add) and says whether the placement still fits.
  DriftVerdict add(std::span<const std::int32_t> ids, std::int32_t top_k);
  /// Another placement serves from now on; counts stay, the reference C_T is taken anew.
  void placed(LayerPlacement placement);

  [[nodiscard]] const CoactivationCounts& counts() const { return counts_; }
  [[nodiscard]] double load_imbalance() const;  ///< of the decayed counts; 0 without any
  [[nodiscard]] double replicas() const;        ///< decayed mean of devices a token
  [[nodiscard]] const LayerPlacement& placement() const { return placement_; }

 private:
  LayerPlacement placement_;
  MonitorOptions options_;
  CoactivationCounts counts_;
  std::vector<std::int32_t> home_;
  double decayed_devices_ = 0;  // sums over tokens, each weighed as in counts_
  double decayed_tokens_ = 0;
  double seen_ = 0;       // tokens since the placement came
  double reference_ = 0;  // C_T after the warm-up; 0: not yet
  double quiet_until_ = 0;
};

/// A placement on the way from one to another in which at most `max_moves` experts have changed
/// their device: whoever moves experts between steps does it bit by bit. Swaps that bring two
/// experts home come first, then others, lowest ids first; devices keep the size that they have (or
/// get that of `to`). `to` itself once it is within reach. Single copies (kBadInput otherwise).
LayerPlacement limit_moves(const LayerPlacement& from, const LayerPlacement& to,
                           std::int64_t max_moves);

}  // namespace coterie::placement
