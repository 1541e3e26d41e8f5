// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/learning_rate.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::training {
namespace {

constexpr std::int64_t kSteps = 14;

RateSchedule schedule_of(RateShape shape) {
  RateSchedule schedule;
  schedule.shape = shape;
  schedule.peak = 2;
  schedule.warmup_steps = 4;
  schedule.final_share = 0.1;
  return schedule;
}

TEST(LearningRateTest, WarmsUpThenFallsToTheFinalRate) {
  for (const RateShape shape : {RateShape::kLinear, RateShape::kCosine}) {
    const RateSchedule schedule = schedule_of(shape);
    EXPECT_DOUBLE_EQ(schedule.at(0, kSteps), 0.5);
    EXPECT_DOUBLE_EQ(schedule.at(3, kSteps), 2);
    EXPECT_DOUBLE_EQ(schedule.at(4, kSteps), 2);
    EXPECT_NEAR(schedule.at(9, kSteps), 1.1, 1e-12);  // half way
    EXPECT_NEAR(schedule.at(14, kSteps), 0.2, 1e-12);
    EXPECT_NEAR(schedule.at(1000, kSteps), 0.2, 1e-12);
  }
  EXPECT_NEAR(schedule_of(RateShape::kCosine).at(6, kSteps), 0.2 + 1.8 * 0.904508497187, 1e-9);
  EXPECT_DOUBLE_EQ(schedule_of(RateShape::kConstant).at(13, kSteps), 2);
}

TEST(LearningRateTest, TrapezoidIsThatOfTheDemoRecipe) {
  RateSchedule schedule = schedule_of(RateShape::kTrapezoid);
  schedule.peak = 3e-3;
  schedule.warmup_steps = 300;
  schedule.final_share = 1e-3;
  EXPECT_DOUBLE_EQ(schedule.at(0, 1000), 3e-3 / 300);
  EXPECT_DOUBLE_EQ(schedule.at(400, 1000), 3e-3);
  EXPECT_NEAR(schedule.at(750, 1000), 3e-3 * 0.501, 1e-12);
  EXPECT_NEAR(schedule.at(999, 1000), 3e-3 * 0.003, 1e-12);
}

TEST(LearningRateTest, SurvivesJsonAndSaysWhatIsWrong) {
  const RateSchedule schedule = schedule_of(RateShape::kTrapezoid);
  const Json document = to_json(schedule);
  EXPECT_EQ(read_rate_schedule(JsonReader(document, "x")), schedule);
  const Json wrong = parse_json(R"({"shape": "zigzag"})", "x");
  try {
    read_rate_schedule(JsonReader(wrong, "recipe.json"));
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("/shape"), std::string::npos) << text;
    EXPECT_NE(text.find("zigzag"), std::string::npos) << text;
    EXPECT_NE(text.find("trapezoid"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace coterie::training
