// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/base/json_forward.hpp"

namespace coterie::pruning {

/// Which devices a token keeps.
enum class DeviceChoice : std::uint8_t {
  kFirstSeen,  ///< those of its experts by descending score (Occult, section 4.1)
  kKeptMass,   ///< those that keep the most of its routed score: never less than kFirstSeen
};

/// What takes the place of an expert that a token may not reach.
enum class Replacement : std::uint8_t {
  kRouterScore,  ///< the best-scored experts on the kept devices (Occult, section 4.2)
  kSimilarity,   ///< the most similar expert on the kept devices (Occult, section 4.3)
  kNone,         ///< nothing: the token has fewer experts
};

/// The weights of the experts that a token ends with.
enum class Weights : std::uint8_t {
  kOwnScore,  ///< each expert's own score, substitutes included
  kKeepSum,   ///< own scores, scaled so that they sum to what the unpruned picks' scores summed to
};

std::string_view name_of(DeviceChoice choice) noexcept;
std::string_view name_of(Replacement replacement) noexcept;
std::string_view name_of(Weights weights) noexcept;
/// kBadInput, naming those that exist, for any other name.
DeviceChoice device_choice_of(std::string_view name);
Replacement replacement_of(std::string_view name);
Weights weights_of(std::string_view name);

/// How many devices a token may use in one layer.
struct Budget {
  std::int32_t max_devices = 0;  ///< n >= 1; 0: no limit
  /// From 1 up to max_devices: tokens keep at least so many (if their experts are on so many).
  std::int32_t min_devices = 1;
  /// Beyond min_devices a device is kept only if it holds at least this share of the token's routed
  /// score (0: all up to max_devices). One threshold gives budgets that differ by token and layer;
  /// `fit_threshold` finds it for a wanted mean. kKeptMass only.
  double min_share = 0;

  [[nodiscard]] bool is_unlimited() const { return max_devices == 0; }
  bool operator==(const Budget&) const = default;
};

/// What pruning does. Unlimited by default, which changes nothing at all.
struct PruningOptions {
  DeviceChoice device_choice = DeviceChoice::kKeptMass;
  Replacement replacement = Replacement::kRouterScore;
  Weights weights = Weights::kOwnScore;
  Budget budget;
  std::vector<Budget> layer_budgets;  ///< [MoE layers], in place of `budget`; or empty

  [[nodiscard]] const Budget& budget_of(std::size_t slot) const {
    return layer_budgets.empty() ? budget : layer_budgets[slot];
  }
  bool operator==(const PruningOptions&) const = default;
};

/// Throws kBadInput naming the option and its value if a budget is out of range, or a threshold is
/// given with first-seen choice.
void check_pruning_options(const PruningOptions& options);

Json to_json(const PruningOptions& options);
/// Reads what to_json wrote; kBadInput names `where` and the key.
PruningOptions pruning_options_from_json(const Json& json, const std::string& where);

}  // namespace coterie::pruning
