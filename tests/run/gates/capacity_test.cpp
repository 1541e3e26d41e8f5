// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/capacity.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "gate_case.hpp"

namespace coterie::gates {
namespace {

CapacityOptions limit(double factor, std::int64_t minimum = 1,
                      CapacityRounding rounding = CapacityRounding::kUp) {
  return {factor, minimum, rounding};
}

TEST(ExpertCapacity, FollowsItsRule) {
  EXPECT_EQ(expert_capacity(limit(1.0), 8, 2, 4), 4);
  EXPECT_EQ(expert_capacity(limit(1.25), 8, 2, 4), 5);
  EXPECT_EQ(expert_capacity(limit(1.3), 8, 2, 4), 6);
  EXPECT_EQ(expert_capacity(limit(1.3, 1, CapacityRounding::kDown), 8, 2, 4), 5);
  EXPECT_EQ(expert_capacity(limit(1.1), 100, 1, 10), 11);  // 11.000000000000002 in fp64
  EXPECT_EQ(expert_capacity(limit(0.7, 1, CapacityRounding::kDown), 100, 1, 10), 7);  // 6.9999...
  EXPECT_EQ(expert_capacity(limit(0.01), 8, 2, 4), 1);
  EXPECT_EQ(expert_capacity(limit(0.01, 3), 8, 2, 4), 3);
  EXPECT_EQ(expert_capacity(limit(1.0, 8), 1, 2, 4), 1) << "never more than there are tokens";
  EXPECT_EQ(expert_capacity(limit(100.0), 8, 2, 4), 8);
  EXPECT_EQ(expert_capacity(limit(1e300), 8, 2, 4), 8);
  EXPECT_EQ(expert_capacity(limit(1.0), 0, 2, 4), 0);
}

/// Picks given as ids, weights descending along a row as a gate gives them.
Routing routing_of(const at::Tensor& ids, const at::Tensor& weights, std::int64_t num_experts) {
  Routing routing;
  routing.ids = ids.to(at::kInt);
  routing.weights = weights;
  routing.top_k = ids.size(1);
  routing.usable = ids.select(1, 0).ge(0);
  routing.statistics.num_tokens = routing.usable.sum().item<std::int64_t>();
  routing.statistics.picks_per_expert.assign(static_cast<std::size_t>(num_experts), 0);
  return routing;
}

TEST(PlacePicks, ServesFirstChoicesOfAllBeforeSecondChoices) {
  const at::Tensor ids = at::tensor({0, 1, 1, 0, 0, 1, 1, 0}, at::kLong).view({4, 2});
  const Routing routing = routing_of(ids, at::full({4, 2}, 0.5, at::kDouble), 2);
  const TokenBatch batch = random_batch({4}, 1, 1);
  const PickPlaces places = place_picks(batch, routing, limit(0.75), "order");  // C = 3
  EXPECT_EQ(places.blocks[0].capacity, 3);
  EXPECT_TRUE(
      at::equal(places.place, at::tensor({0, 2, 0, 2, 1, -1, 1, -1}, at::kLong).view({4, 2})));
  EXPECT_EQ(places.num_dropped, 2);
}

TEST(PlacePicks, KeepsTheHighestWeightsThoughAllLogitsWereNegative) {
  const at::Tensor ids = at::zeros({4, 1}, at::kLong);
  const at::Tensor weights = at::tensor({0.1, 0.4, 0.3, 0.4}, at::kDouble).view({4, 1});
  CapacityOptions by_score = limit(1.0);  // E = 2: C = 2
  by_score.keep = CapacityKeep::kScore;
  const PickPlaces places =
      place_picks(random_batch({4}, 1, 1), routing_of(ids, weights, 2), by_score, "order");
  EXPECT_TRUE(at::equal(places.place.flatten(), at::tensor({-1, 0, -1, 1}, at::kLong)));
}

TEST(PlacePicks, DropsNothingWhereCapacityIsAmple) {
  for (const CapacityKeep keep : {CapacityKeep::kPosition, CapacityKeep::kScore}) {
    GateOptions o = small_gate(GateKind::kTopkSoftmax, 4, 2);
    const auto gate = make_gate(o);
    {
      const at::NoGradGuard guard;
      gate->parameters()[0].copy_(-random_values({4, 6}, 3).abs());
    }
    TokenBatch batch = random_batch({30}, o.hidden, 4);
    batch.x = batch.x.abs();  // every logit is negative
    const Routing routing = gate->forward(batch);
    ASSERT_TRUE(routing.logits.lt(0).all().item<bool>());
    CapacityOptions ample = limit(4.0);
    ample.keep = keep;
    EXPECT_EQ(place_picks(batch, routing, ample, "order").num_dropped, 0);
  }
}

TEST(PlacePicks, FillsPlacesWithoutGapsAndNeverBeyondCapacity) {
  for (const double factor : {0.0, 0.4, 1.0}) {
    for (const CapacityScope scope : {CapacityScope::kSequence, CapacityScope::kRank}) {
      CapacityOptions options = limit(factor);
      options.scope = scope;
      options.keep = CapacityKeep::kScore;
      const GateOptions o = small_gate(GateKind::kTopkSoftmax, 5, 3);
      const TokenBatch batch = pad_left(random_batch({20, 0, 11}, o.hidden, 4), 2);
      const Routing routing = random_gate(o, 5)->forward(batch);
      const PickPlaces places = place_picks(batch, routing, options, "order");
      ASSERT_EQ(places.blocks.size(), scope == CapacityScope::kRank ? 1U : 2U);
      std::int64_t kept = 0;
      for (const CapacityBlock& block : places.blocks) {
        const at::Tensor tokens = at::tensor(block.tokens, at::kLong);
        const at::Tensor ids = routing.ids.index_select(0, tokens);
        const at::Tensor place = places.place.index_select(0, tokens);
        for (std::int64_t e = 0; e < 5; ++e) {
          const at::Tensor mine = place.masked_select(ids.eq(e).logical_and(place.ge(0)));
          kept += mine.size(0);
          EXPECT_LE(mine.size(0), block.capacity);
          EXPECT_TRUE(at::equal(std::get<0>(mine.sort()), at::arange(mine.size(0))));
        }
      }
      EXPECT_EQ(kept + places.num_dropped, 31 * 3);
      EXPECT_EQ(places.num_dropped > 0, factor > 0.0);
    }
  }
}

TEST(IndexOrder, CountsDropsAndLeavesDroppedTokensWithoutExperts) {
  const at::Tensor ids = at::zeros({6, 1}, at::kLong);
  const Routing routing = routing_of(ids, at::ones({6, 1}, at::kDouble), 3);
  OrderOptions options;
  options.capacity = limit(1.0);  // C = 2
  const OrderedRows rows = make_order(options)->order(random_batch({6}, 4, 1), routing);
  EXPECT_TRUE(at::equal(rows.ids.flatten(), at::tensor({0, 0, -1, -1, -1, -1}, at::kInt)));
  EXPECT_TRUE(
      at::equal(rows.weights.flatten(), at::tensor({1.0, 1.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble)));
  EXPECT_EQ(rows.statistics.num_dropped_picks, 4);
  EXPECT_EQ(rows.statistics.num_dropped_tokens, 4);
}

}  // namespace
}  // namespace coterie::gates
