// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/measure_pruning.hpp"

#include <gtest/gtest.h>

#include <set>

#include "coterie/base/error.hpp"
#include "coterie/plan/pruning/layer_pruner.hpp"
#include "tests/plan/pruning/random_tokens.hpp"

namespace coterie::pruning {
namespace {

constexpr std::int32_t kExperts = 32;
constexpr std::int32_t kTopK = 6;

struct Sample {
  routing::LayerTrace trace;
  std::vector<testing::Token> tokens;
};

Sample random_sample(std::size_t num_tokens) {
  Random random(31);
  Sample sample;
  sample.trace.num_experts = kExperts;
  sample.trace.top_k = kTopK;
  auto infos = std::make_shared<std::vector<routing::TokenInfo>>();
  for (std::size_t t = 0; t < num_tokens; ++t) {
    sample.tokens.push_back(testing::random_token(random, kExperts, kTopK));
    for (std::size_t i = kTopK; i-- > 0;) {  // traces promise no order
      sample.trace.ids.push_back(static_cast<std::uint16_t>(sample.tokens.back().ids[i]));
      sample.trace.weights.push_back(sample.tokens.back().weights[i]);
    }
    infos->push_back({0, static_cast<std::uint32_t>(t), 0, 0});
  }
  sample.trace.tokens = infos;
  return sample;
}

TEST(MeasurePruning, PredictsWhatThePrunerDoes) {
  const Sample sample = random_sample(300);
  Random random(8);
  const auto placement = testing::random_placement(random, kExperts, 8);
  const auto home = placement.device_of_expert();
  for (const Budget budget : {Budget{1}, Budget{2}, Budget{3}, Budget{4, 1, 0.2}, Budget{}}) {
    const PruningFigures figures = measure_pruning(sample.trace, placement, {}, budget);
    const LayerPruner pruner(placement, {}, budget);
    std::size_t devices = 0;
    for (const testing::Token& token : sample.tokens) {
      auto ids = token.ids;
      auto weights = token.weights;
      pruner.prune({token.scores, token.scores}, ids, weights);
      std::set<std::int32_t> used;
      for (const std::int32_t id : ids) {
        if (id >= 0) {  // a device may hold fewer experts than a token picks
          used.insert(home[static_cast<std::size_t>(id)]);
        }
      }
      devices += used.size();
    }
    EXPECT_EQ(figures.num_tokens, 300U);
    EXPECT_DOUBLE_EQ(figures.replicas_after, static_cast<double>(devices) / 300);
    std::uint64_t tokens = 0;
    for (const std::uint64_t count : figures.tokens_of_count) {
      tokens += count;
    }
    EXPECT_EQ(tokens, 300U);
    if (budget.is_unlimited()) {
      EXPECT_EQ(figures.replicas_after, figures.replicas_before);
      EXPECT_EQ(figures.kept_mass, 1);
      EXPECT_EQ(figures.limited_share, 0);
      EXPECT_EQ(figures.traffic_ratio(), 1);
    } else {
      EXPECT_LT(figures.kept_mass, 1);
      EXPECT_GT(figures.replaced_picks, 0);
    }
  }
}

TEST(MeasurePruning, NeedsWeightsAndKnownExperts) {
  Sample sample = random_sample(4);
  EXPECT_THROW((void)measure_pruning(sample.trace, placement::contiguous_placement(8, 4), {}, {1}),
               Error);
  sample.trace.weights.clear();
  EXPECT_THROW(
      (void)measure_pruning(sample.trace, placement::contiguous_placement(kExperts, 4), {}, {1}),
      Error);
}

}  // namespace
}  // namespace coterie::pruning
