// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "coterie/base/error.hpp"
#include "tests/run/layer/toy_layer.hpp"

namespace coterie::layer {
namespace {

constexpr std::int32_t kExperts = 12;
constexpr std::int32_t kTopK = 5;
constexpr std::int64_t kTokens = 90;

std::shared_ptr<const pruning::LayerPruner> pruner_of(const placement::LayerPlacement& placement,
                                                      std::int32_t max_devices,
                                                      pruning::Replacement replacement) {
  pruning::PruningOptions options;
  options.replacement = replacement;
  const pruning::SimilarityTable table(kExperts, kExperts, 0.5);
  return std::make_shared<pruning::LayerPruner>(placement, options, pruning::Budget{max_devices},
                                                &table);
}

std::size_t devices_of(std::span<const std::int32_t> ids, const std::vector<std::int32_t>& home) {
  std::set<std::int32_t> devices;
  for (const std::int32_t id : ids) {
    if (id >= 0) {
      devices.insert(home[static_cast<std::size_t>(id)]);
    }
  }
  return devices.size();
}

class PrunedLayer : public ::testing::TestWithParam<std::tuple<pruning::Replacement, bool>> {
 protected:
  PrunedLayer() : toy_(3, kExperts, kTopK), x_(random_, kTokens, 24, 1.0) {
    toy_.options.norm_topk_prob = std::get<1>(GetParam());
  }
  [[nodiscard]] MoeOptions pruned(std::int32_t max_devices) const {
    MoeOptions options = toy_.options;
    options.pruner = pruner_of(placement_, max_devices, std::get<0>(GetParam()));
    return options;
  }

  Random random_{17};
  placement::LayerPlacement placement_ = placement::contiguous_placement(kExperts, 4);
  ToyLayer toy_;
  Values x_;
};

TEST_P(PrunedLayer, TrafficIsTheOneThatTheUnprunedRoutingPredicts) {
  const auto home = placement_.device_of_expert();
  for (const std::int32_t max_devices : {1, 2, 3, 4}) {
    MoeLayer layer(pruned(max_devices), toy_.weights(), placement_);
    RoutingRecord record;
    forward(layer, x_.view(), &record);
    std::size_t expected = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto at = static_cast<std::size_t>(t * kTopK);
      const auto before = devices_of(std::span(record.unpruned_ids).subspan(at, kTopK), home);
      const auto after = devices_of(std::span(record.expert_ids).subspan(at, kTopK), home);
      ASSERT_EQ(after, std::min(before, static_cast<std::size_t>(max_devices))) << "token " << t;
      expected += after;
    }
    std::int64_t rows = 0;
    for (const std::int64_t count : record.rows_received) {
      rows += count;
    }
    EXPECT_EQ(rows, static_cast<std::int64_t>(expected));
    EXPECT_EQ(record.num_pruned_tokens > 0, max_devices < 4);
  }
}

TEST_P(PrunedLayer, IsTheLayerWithThatRoutingGiven) {
  MoeLayer layer(pruned(2), toy_.weights(), placement_);
  RoutingRecord record;
  const auto rows = forward(layer, x_.view(), &record);
  MoeLayer plain(toy_.options, toy_.weights(), placement_);
  std::vector<float> y(static_cast<std::size_t>(kTokens * 24));
  plain.forward_routed(x_.view(), {record.expert_ids, record.weights, {}},
                       {y.data(), kTokens, 24, 24, kernels::DType::kFloat32});
  EXPECT_EQ(floats_of(rows), y);
  if (toy_.options.norm_topk_prob) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(kTokens); ++t) {
      double sum = 0;
      for (std::size_t i = 0; i < kTopK; ++i) {
        sum += static_cast<double>(record.weights[t * kTopK + i]);
      }
      EXPECT_NEAR(sum, 1, 1e-6);
    }
  }
}

TEST_P(PrunedLayer, AWideLimitAndOtherThreadsChangeNoBits) {
  MoeLayer plain(toy_.options, toy_.weights(), placement_);
  MoeLayer wide(pruned(4), toy_.weights(), placement_);
  EXPECT_EQ(forward(plain, x_.view()), forward(wide, x_.view()));
  kernels::Threads pool(3);
  kernels::Execution execution;
  execution.threads = &pool;
  MoeLayer one(pruned(2), toy_.weights(), placement_);
  MoeLayer three(pruned(2), toy_.weights(), placement_, nullptr, execution);
  EXPECT_EQ(forward(one, x_.view()), forward(three, x_.view()));
}

INSTANTIATE_TEST_SUITE_P(Replacements, PrunedLayer,
                         ::testing::Combine(::testing::Values(pruning::Replacement::kRouterScore,
                                                              pruning::Replacement::kSimilarity,
                                                              pruning::Replacement::kNone),
                                            ::testing::Bool()));

TEST(PrunedLayerErrors, APrunerOfAnotherLayerIsRefused) {
  const ToyLayer toy(3, 8, 2);
  MoeOptions options = toy.options;
  options.pruner =
      pruner_of(placement::contiguous_placement(kExperts, 4), 2, pruning::Replacement::kNone);
  EXPECT_THROW(MoeLayer(options, toy.weights()), Error);
}

}  // namespace
}  // namespace coterie::layer
