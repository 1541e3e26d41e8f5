// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/pruning_options.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::pruning {
namespace {

TEST(PruningOptions, ComeBackFromJson) {
  PruningOptions options;
  options.device_choice = DeviceChoice::kKeptMass;
  options.replacement = Replacement::kSimilarity;
  options.weights = Weights::kKeepSum;
  options.layer_budgets = {{2}, {4, 1, 0.125}};
  EXPECT_EQ(pruning_options_from_json(to_json(options), "here"), options);
  EXPECT_EQ(options.budget_of(1).max_devices, 4);
  options.layer_budgets.clear();
  EXPECT_TRUE(options.budget_of(1).is_unlimited());
}

TEST(PruningOptions, RefuseUnknownNamesAndBrokenBudgets) {
  EXPECT_THROW((void)device_choice_of("first-seen"), Error);
  EXPECT_THROW((void)replacement_of(""), Error);
  EXPECT_THROW((void)weights_of("sum"), Error);
  Json json = to_json(PruningOptions{});
  json["budget"]["max_devices"] = -1;
  EXPECT_THROW((void)pruning_options_from_json(json, "here"), Error);
  json["budget"]["max_devices"] = 2;
  json["budget"]["min_devices"] = 3;
  EXPECT_THROW((void)pruning_options_from_json(json, "here"), Error);
  json["budget"].erase("min_devices");
  EXPECT_THROW((void)pruning_options_from_json(json, "here"), Error);
}

}  // namespace
}  // namespace coterie::pruning
