// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/plan_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "coterie/base/error.hpp"
#include "tests/plan/schedule/random_work.hpp"

namespace coterie::schedule {
namespace {

ModelPlan sample() {
  Random random(1);
  ModelPlan plan{"coterie", "sample", "nccl", {}};
  for (const std::int32_t layer : {1, 2, 5}) {
    plan.layers.push_back({layer, plan_layer(kCoterie, random_layer(random), {})});
  }
  return plan;
}

TEST(PlanFile, RoundTripKeepsEveryByte) {
  const auto path = std::filesystem::temp_directory_path() / "coterie_plan_file_test.json";
  const ModelPlan plan = sample();
  write_plan(path, plan);
  EXPECT_EQ(read_plan(path), plan);
  EXPECT_EQ(to_json(read_plan(path)), to_json(plan));
  EXPECT_GT(plan.predicted_s(), 0);
  std::filesystem::remove(path);
}

TEST(PlanFile, DamageIsRefusedWithItsPlace) {
  const Json good = to_json(sample());
  const std::pair<std::string, std::function<void(Json&)>> damages[] = {
      {"/format", [](Json& j) { j["format"] = "coterie-timeline"; }},
      {"/version", [](Json& j) { j["version"] = 9; }},
      {"/layers/1/layer", [](Json& j) { j["layers"][1]["layer"] = 1; }},
      {"/layers/0/forward/shares",
       [](Json& j) {
         j["layers"][0]["forward"]["shares"] = {0.5, 0.4};
       }},
      {"/layers/2/backward/order", [](Json& j) { j["layers"][2]["backward"]["order"] = "best"; }},
      {"\"backward\"", [](Json& j) { j["layers"][0].erase("backward"); }},
      {"/layers/0/forward/shares",
       [](Json& j) {
         j["layers"][0]["forward"]["shares"] = {0, 1};
       }},
      {"dense_gradient", [](Json& j) { j["layers"][0]["backward"]["dense_gradient"] = -1; }},
  };
  for (const auto& [place, damage] : damages) {
    Json bad = good;
    damage(bad);
    try {
      model_plan_from(bad, "plan.json");
      ADD_FAILURE() << place;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find("plan.json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    }
  }
}

TEST(PlanFile, RandomDamageOfTheTextNeverReadsAsSomethingBroken) {
  const std::string text = format_json(to_json(sample()));
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = text;
    bad[random.below(bad.size())] = static_cast<char>(32 + random.below(95));
    try {
      const ModelPlan plan = model_plan_from(parse_json(bad, "x"), "x");
      EXPECT_EQ(model_plan_from(to_json(plan), "y"), plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    }
  }
}

}  // namespace
}  // namespace coterie::schedule
