// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/pruning_options.hpp"

#include <array>
#include <limits>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::pruning {
namespace {

template <typename Value, std::size_t N>
using Names = std::array<std::pair<std::string_view, Value>, N>;

constexpr Names<DeviceChoice, 2> kDeviceChoices = {
    {{"first_seen", DeviceChoice::kFirstSeen}, {"kept_mass", DeviceChoice::kKeptMass}}};
constexpr Names<Replacement, 3> kReplacements = {{{"router_score", Replacement::kRouterScore},
                                                  {"similarity", Replacement::kSimilarity},
                                                  {"none", Replacement::kNone}}};
constexpr Names<Weights, 2> kWeights = {
    {{"own_score", Weights::kOwnScore}, {"keep_sum", Weights::kKeepSum}}};

template <typename Value, std::size_t N>
std::string_view find_name(const Names<Value, N>& names, Value value) noexcept {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) {
      return name;
    }
  }
  return "?";
}

template <typename Value, std::size_t N>
Value find_value(const Names<Value, N>& names, std::string_view wanted, const char* what) {
  std::string all;
  for (const auto& [name, value] : names) {
    if (name == wanted) {
      return value;
    }
    all += (all.empty() ? "" : ", ") + std::string(name);
  }
  fail(ErrorCode::kBadInput, what, " \"", wanted, "\" is not known; there are ", all);
}

void check_budget(const Budget& budget, const PruningOptions& options, const std::string& where) {
  if (budget.is_unlimited()) {
    return;
  }
  COTERIE_REQUIRE(budget.max_devices > 0, where, ": max_devices is ", budget.max_devices);
  COTERIE_REQUIRE(budget.min_devices >= 1 && budget.min_devices <= budget.max_devices, where,
                  ": min_devices is ", budget.min_devices, ", not in [1, ", budget.max_devices,
                  "]");
  COTERIE_REQUIRE(budget.min_share >= 0 && budget.min_share <= 1, where, ": min_share is ",
                  budget.min_share, ", not in [0, 1]");
  COTERIE_REQUIRE(budget.min_share == 0 || options.device_choice == DeviceChoice::kKeptMass, where,
                  ": min_share is ", budget.min_share, ": it needs device choice kept_mass");
}

Json to_json(const Budget& budget) {
  return {{"max_devices", budget.max_devices},
          {"min_devices", budget.min_devices},
          {"min_share", budget.min_share}};
}

Budget budget_from(const JsonReader& reader) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  Budget budget;
  budget.max_devices = static_cast<std::int32_t>(reader.at("max_devices").as_int(0, kMost));
  budget.min_devices = static_cast<std::int32_t>(reader.at("min_devices").as_int(1, kMost));
  budget.min_share = reader.at("min_share").as_double();
  return budget;
}

}  // namespace

std::string_view name_of(DeviceChoice choice) noexcept {
  return find_name(kDeviceChoices, choice);
}
std::string_view name_of(Replacement replacement) noexcept {
  return find_name(kReplacements, replacement);
}
std::string_view name_of(Weights weights) noexcept {
  return find_name(kWeights, weights);
}
DeviceChoice device_choice_of(std::string_view name) {
  return find_value(kDeviceChoices, name, "device choice");
}
Replacement replacement_of(std::string_view name) {
  return find_value(kReplacements, name, "replacement");
}
Weights weights_of(std::string_view name) {
  return find_value(kWeights, name, "weights");
}

void check_pruning_options(const PruningOptions& options) {
  check_budget(options.budget, options, "pruning");
  for (std::size_t i = 0; i < options.layer_budgets.size(); ++i) {
    check_budget(options.layer_budgets[i], options, "pruning of MoE layer " + std::to_string(i));
  }
}

Json to_json(const PruningOptions& options) {
  Json layers = Json::array();
  for (const Budget& budget : options.layer_budgets) {
    layers.push_back(to_json(budget));
  }
  return {{"device_choice", name_of(options.device_choice)},
          {"replacement", name_of(options.replacement)},
          {"weights", name_of(options.weights)},
          {"budget", to_json(options.budget)},
          {"layer_budgets", layers}};
}

PruningOptions pruning_options_from_json(const Json& json, const std::string& where) {
  const JsonReader reader(json, where);
  PruningOptions options;
  options.device_choice = device_choice_of(reader.at("device_choice").as_string());
  options.replacement = replacement_of(reader.at("replacement").as_string());
  options.weights = weights_of(reader.at("weights").as_string());
  options.budget = budget_from(reader.at("budget"));
  const JsonReader layers = reader.at("layer_budgets");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    options.layer_budgets.push_back(budget_from(layers.at(i)));
  }
  check_pruning_options(options);
  return options;
}

}  // namespace coterie::pruning
