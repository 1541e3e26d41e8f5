// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/layer_pruner.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "coterie/base/error.hpp"
#include "tests/plan/pruning/random_tokens.hpp"

namespace coterie::pruning {
namespace {

using testing::random_placement;
using testing::random_token;
using testing::Token;
using Ids = std::vector<std::int32_t>;

const placement::LayerPlacement kPairs = placement::contiguous_placement(8, 4);
//                                      expert 0      1      2      3      4      5      6      7
const std::vector<float> kScores = {0.30F, 0.05F, 0.24F, 0.02F, 0.20F, 0.04F, 0.10F, 0.05F};

PruningOptions options_with(Replacement replacement, Weights weights = Weights::kOwnScore) {
  PruningOptions options;
  options.replacement = replacement;
  options.weights = weights;
  return options;
}

struct Pruned {
  Ids ids;
  std::vector<float> weights;
  bool changed = false;
};

Pruned prune(const LayerPruner& pruner, Token token) {
  Pruned result{token.ids, token.weights};
  result.changed = pruner.prune({token.scores, token.scores}, result.ids, result.weights);
  return result;
}

Token example() {
  return {kScores, {0, 2, 4, 6}, {0.30F, 0.24F, 0.20F, 0.10F}};  // one pick on each device
}

TEST(LayerPruner, RouterScoreTakesTheBestOnTheKeptDevices) {
  const Pruned pruned = prune({kPairs, options_with(Replacement::kRouterScore), {2}}, example());
  EXPECT_TRUE(pruned.changed);
  EXPECT_EQ(pruned.ids, (Ids{0, 2, 1, 3}));
  EXPECT_EQ(pruned.weights, (std::vector<float>{0.30F, 0.24F, 0.05F, 0.02F}));
  const Pruned one = prune({kPairs, options_with(Replacement::kRouterScore), {1}}, example());
  EXPECT_EQ(one.ids, (Ids{0, 1, -1, -1}));  // two experts are all that device 0 has
  EXPECT_EQ(one.weights, (std::vector<float>{0.30F, 0.05F, 0, 0}));
}

TEST(LayerPruner, NoneDropsAndKeepSumScales) {
  const Pruned own = prune({kPairs, options_with(Replacement::kNone), {2}}, example());
  EXPECT_EQ(own.ids, (Ids{0, 2, -1, -1}));
  EXPECT_EQ(own.weights, (std::vector<float>{0.30F, 0.24F, 0, 0}));
  const Pruned scaled =
      prune({kPairs, options_with(Replacement::kNone, Weights::kKeepSum), {2}}, example());
  EXPECT_EQ(scaled.ids, own.ids);
  EXPECT_FLOAT_EQ(scaled.weights[0], 0.30F * (0.84F / 0.54F));
  EXPECT_FLOAT_EQ(scaled.weights[0] + scaled.weights[1], 0.84F);
}

TEST(LayerPruner, SimilarityFillsTheSlotsOfLostExperts) {
  SimilarityTable table(8, 8);
  for (std::size_t e = 0; e < 8; ++e) {
    table(e, e) = 1;
  }
  // Expert 4 is most like 0 (taken), then 3; expert 6 is most like 3 (taken by then), then 1.
  table(4, 0) = table(0, 4) = 0.9;
  table(4, 3) = table(3, 4) = 0.8;
  table(6, 3) = table(3, 6) = 0.7;
  table(6, 1) = table(1, 6) = 0.1;
  const LayerPruner pruner(kPairs, options_with(Replacement::kSimilarity), {2}, &table);
  const Pruned pruned = prune(pruner, example());
  EXPECT_EQ(pruned.ids, (Ids{0, 2, 3, 1}));
  EXPECT_EQ(pruned.weights, (std::vector<float>{0.30F, 0.24F, 0.02F, 0.05F}));
}

TEST(LayerPruner, SimilarityNeedsATableOfTheRightSize) {
  EXPECT_THROW(LayerPruner(kPairs, options_with(Replacement::kSimilarity), {2}), Error);
  const SimilarityTable small(4, 4);
  EXPECT_THROW(LayerPruner(kPairs, options_with(Replacement::kSimilarity), {2}, &small), Error);
}

TEST(LayerPruner, SelectionMayRankOtherwiseThanWeights) {
  // DeepSeek-V3 ranks by score plus bias, but weighs by score.
  std::vector<float> selection = kScores;
  selection[3] += 1.0F;
  Token token{kScores, {3, 0, 2, 4}, {0.02F, 0.30F, 0.24F, 0.20F}};
  const LayerPruner pruner(kPairs, options_with(Replacement::kRouterScore), {2});
  Ids ids = token.ids;
  std::vector<float> weights = token.weights;
  EXPECT_TRUE(pruner.prune({selection, token.scores}, ids, weights));
  EXPECT_EQ(ids, (Ids{3, 0, 2, 1}));
  EXPECT_EQ(weights, (std::vector<float>{0.02F, 0.30F, 0.24F, 0.05F}));
}

/// The policy as the paper words it, with no care for speed.
Pruned by_masking(const Token& token, const std::vector<std::int32_t>& devices,
                  const placement::LayerPlacement& placement) {
  Pruned result;
  std::vector<std::pair<float, std::int32_t>> ranked;
  for (std::int32_t e = 0; e < placement.num_experts; ++e) {
    const bool open = std::any_of(devices.begin(), devices.end(), [&](std::int32_t d) {
      const auto& on = placement.experts_of_device[static_cast<std::size_t>(d)];
      return std::find(on.begin(), on.end(), e) != on.end();
    });
    if (open) {
      ranked.emplace_back(-token.scores[static_cast<std::size_t>(e)], e);
    }
  }
  std::sort(ranked.begin(), ranked.end());
  for (std::size_t i = 0; i < token.ids.size(); ++i) {
    result.ids.push_back(i < ranked.size() ? ranked[i].second : -1);
    result.weights.push_back(i < ranked.size() ? -ranked[i].first : 0.0F);
  }
  return result;
}

TEST(LayerPruner, LawsHoldOnRandomTokens) {
  Random random(23);
  int num_changed = 0;
  for (int round = 0; round < 800; ++round) {
    const auto num_devices = static_cast<std::int32_t>(2 + random.below(7));
    const std::int32_t num_experts = num_devices * static_cast<std::int32_t>(1 + random.below(6)) +
                                     static_cast<std::int32_t>(random.below(3));
    const auto top_k = static_cast<std::int32_t>(
        1 + random.below(static_cast<std::uint64_t>(std::min(num_experts, 8))));
    const auto placement = random_placement(random, num_experts, num_devices);
    const auto home = placement.device_of_expert();
    const auto devices_of = [&](const Ids& ids) {
      std::set<std::int32_t> devices;
      for (const std::int32_t id : ids) {
        if (id >= 0) {
          devices.insert(home[static_cast<std::size_t>(id)]);
        }
      }
      return devices;
    };
    SimilarityTable table(static_cast<std::size_t>(num_experts),
                          static_cast<std::size_t>(num_experts));
    for (std::size_t i = 0; i < table.rows(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        table(i, j) = table(j, i) = random.uniform();
      }
    }
    const Token token = random_token(random, num_experts, top_k, round % 4 == 0 ? 4 : 0);
    const Budget budget{static_cast<std::int32_t>(1 + random.below(3))};
    for (const DeviceChoice choice : {DeviceChoice::kFirstSeen, DeviceChoice::kKeptMass}) {
      for (const Replacement replacement :
           {Replacement::kRouterScore, Replacement::kSimilarity, Replacement::kNone}) {
        PruningOptions options = options_with(replacement);
        options.device_choice = choice;
        const LayerPruner pruner(placement, options, budget, &table);
        const Pruned pruned = prune(pruner, token);
        const auto before = devices_of(token.ids);
        const auto after = devices_of(pruned.ids);
        num_changed += pruned.changed ? 1 : 0;
        // The traffic law: exactly min(n, devices before).
        ASSERT_EQ(after.size(), std::min<std::size_t>(
                                    before.size(), static_cast<std::size_t>(budget.max_devices)));
        std::set<std::int32_t> distinct;
        for (std::size_t i = 0; i < pruned.ids.size(); ++i) {
          if (pruned.ids[i] >= 0) {
            ASSERT_TRUE(distinct.insert(pruned.ids[i]).second) << "an expert twice";
            ASSERT_EQ(pruned.weights[i], token.scores[static_cast<std::size_t>(pruned.ids[i])]);
          } else {
            ASSERT_EQ(pruned.weights[i], 0.0F);
          }
        }
        for (const std::int32_t id : token.ids) {  // picks on kept devices stay
          ASSERT_EQ(after.contains(home[static_cast<std::size_t>(id)]), distinct.contains(id));
        }
        if (!pruned.changed) {
          ASSERT_EQ(pruned.ids, token.ids);
          ASSERT_EQ(pruned.weights, token.weights);
        }
        if (replacement == Replacement::kRouterScore && pruned.changed) {
          const std::vector<std::int32_t> devices(after.begin(), after.end());
          const Pruned masked = by_masking(token, devices, placement);
          ASSERT_EQ(pruned.ids, masked.ids);
          ASSERT_EQ(pruned.weights, masked.weights);
        }
      }
    }
  }
  EXPECT_GT(num_changed, 1000);
}

TEST(LayerPruner, NoLimitChangesNothing) {
  Random random(2);
  const auto placement = random_placement(random, 16, 4);
  const LayerPruner pruner(placement, {}, {});
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(prune(pruner, random_token(random, 16, 4)).changed);
  }
}

}  // namespace
}  // namespace coterie::pruning
