// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/drift.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::placement {
namespace {

routing::LayerTrace trace_of(const std::vector<std::uint16_t>& ids,
                             const std::vector<float>& weights = {}) {
  routing::LayerTrace layer;
  layer.layer = 3;
  layer.num_experts = 4;
  layer.top_k = 2;
  layer.ids = ids;
  layer.weights = weights;
  layer.tokens = std::make_shared<std::vector<routing::TokenInfo>>(ids.size() / 2);
  return layer;
}

TEST(Drift, DistanceIsThatOfTheFormula) {
  EXPECT_EQ(jensen_shannon_distance({1, 2}, {2, 4}), 0);
  EXPECT_EQ(jensen_shannon_distance({1, 0}, {0, 5}), 1);
  // p = (1/2, 1/2), q = (1, 0): H(3/4, 1/4) - H(p) / 2 - H(q) / 2
  const double entropy = -(0.75 * std::log2(0.75) + 0.25 * std::log2(0.25));
  EXPECT_NEAR(jensen_shannon_distance({1, 1}, {1, 0}), std::sqrt(entropy - 0.5), 1e-12);
  EXPECT_EQ(jensen_shannon_distance({0, 0}, {1, 0}), 0);
}

TEST(Drift, CountsPicksLoadAndReplicas) {
  const auto placement = contiguous_placement(4, 2);
  const auto before = trace_of({0, 1, 0, 1, 2, 3, 2, 3}, {.5F, .5F, 1, 0, .5F, .5F, .5F, .5F});
  const auto after = trace_of({0, 1, 0, 2, 3, 2, 0, 1}, {.5F, .5F, 1, 0, .5F, .5F, .5F, .5F});
  const LayerDrift same = measure_drift(before, before, placement);
  EXPECT_EQ(same.load_distance, 0);
  EXPECT_EQ(same.token_distance, 0);
  EXPECT_EQ(same.same_picks, 1);
  const LayerDrift drift = measure_drift(before, after, placement);
  EXPECT_EQ(drift.layer, 3);
  EXPECT_EQ(drift.num_tokens, 4U);
  EXPECT_DOUBLE_EQ(drift.same_picks, (1 + 0.5 + 1 + 0) / 4);
  EXPECT_DOUBLE_EQ(drift.token_distance, 0.25);  // the last token alone, wholly
  EXPECT_DOUBLE_EQ(drift.replicas_before, 1);
  EXPECT_DOUBLE_EQ(drift.replicas_after, 1.25);
  EXPECT_DOUBLE_EQ(drift.load_imbalance_after, 1.25);  // 5 of 8 picks on the first
}

TEST(Drift, RefusesTracesOfOtherTexts) {
  const auto placement = contiguous_placement(4, 2);
  EXPECT_THROW(measure_drift(trace_of({0, 1}), trace_of({0, 1, 2, 3}), placement), Error);
  EXPECT_THROW(measure_drift(trace_of({}), trace_of({}), placement), Error);
}

TEST(Move, PaysOnceTheBytesAreSaved) {
  const LayerPlacement from = contiguous_placement(4, 2);
  LayerPlacement to = from;
  to.experts_of_device = {{0, 2}, {1, 3}};
  EXPECT_EQ(count_moved(from, to), 2);
  const MoveCosts costs{1000, 10, 500};
  const MoveEstimate estimate = estimate_move({{&from, &to, 2.0, 1.5}}, costs);
  EXPECT_DOUBLE_EQ(estimate.bytes_moved, 2000);
  EXPECT_DOUBLE_EQ(estimate.bytes_saved_per_token, 5);
  EXPECT_DOUBLE_EQ(estimate.break_even_tokens, 400);
  EXPECT_TRUE(estimate.worth_it);
  EXPECT_FALSE(estimate_move({{&from, &to, 2.0, 1.5}}, {1000, 10, 399}).worth_it);
  EXPECT_FALSE(estimate_move({{&from, &to, 1.5, 2.0}}, costs).worth_it);
  EXPECT_FALSE(estimate_move({{&from, &from, 2.0, 1.5}}, costs).worth_it);
  EXPECT_THROW(count_moved(from, contiguous_placement(4, 4)), Error);
}

}  // namespace
}  // namespace coterie::placement
