// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/timeline.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

Timeline sample() {
  Timeline timeline;
  timeline.name = "sample";
  timeline.spans = {{TaskKind::kDispatch, Lane::kInter, Phase::kForward, 0, 0, 0, 0, 2},
                    {TaskKind::kExperts, Lane::kCompute, Phase::kForward, 0, 0, 0, 1, 4},
                    {TaskKind::kCombine, Lane::kInter, Phase::kForward, 0, 0, 0, 3, 5},
                    {TaskKind::kExperts, Lane::kCompute, Phase::kForward, 0, 0, 1, 0, 9}};
  return timeline;
}

TEST(Timeline, CountsBusyAndHiddenTime) {
  const Timeline timeline = sample();
  EXPECT_EQ(timeline.end_s(), 9);
  EXPECT_EQ(timeline.busy_s(Lane::kInter), 4);
  EXPECT_EQ(timeline.busy_s(Lane::kCompute, 1), 9);
  EXPECT_EQ(timeline.busy_s(Lane::kIntra), 0);
  EXPECT_EQ(timeline.both_busy_s(Lane::kInter, Lane::kCompute), 2);
  EXPECT_EQ(Timeline().end_s(), 0);
  EXPECT_EQ(label_of(timeline.spans[2]), "C1");
}

TEST(Timeline, JoinsAndCompares) {
  const Timeline twice = join(sample(), sample());
  EXPECT_EQ(twice.spans.size(), 8U);
  EXPECT_EQ(twice.spans[4].start_s, 9);
  Timeline slower = sample();
  for (Span& span : slower.spans) {
    span.end_s = span.start_s + 2 * (span.end_s - span.start_s);
  }
  EXPECT_DOUBLE_EQ(mean_duration_error(sample(), slower), 0.5);
  EXPECT_EQ(mean_duration_error(sample(), Timeline()), 0);
}

TEST(Timeline, JsonRoundTripAndDamage) {
  const Json json = to_json(sample());
  EXPECT_EQ(timeline_from(json, "x"), sample());
  Json bad = json;
  bad["spans"][0]["kind"] = "nap";
  EXPECT_THROW(timeline_from(bad, "x"), Error);
  bad = json;
  bad["spans"][0]["end_s"] = -1;
  EXPECT_THROW(timeline_from(bad, "x"), Error);
  bad = json;
  bad["version"] = 2;
  EXPECT_THROW(timeline_from(bad, "x"), Error);
}

}  // namespace
}  // namespace coterie::schedule
