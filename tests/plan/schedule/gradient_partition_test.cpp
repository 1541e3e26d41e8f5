// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/gradient_partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/schedule/differential_evolution.hpp"
#include "coterie/plan/schedule/schedules.hpp"
#include "tests/plan/schedule/random_work.hpp"

namespace coterie::schedule {
namespace {

/// Flat up to a window, then one second a second.
GradientLayer layer_of(double bytes, double dense_window_s, double moe_window_s) {
  return {bytes, dense_window_s,
          [=](double gradient_s) { return 10 + std::max(0.0, gradient_s - moe_window_s); }};
}

std::vector<GradientLayer> random_layers(Random& random, int count) {
  std::vector<GradientLayer> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back(layer_of(static_cast<double>(random.below(9)),
                              static_cast<double>(random.below(5)),
                              static_cast<double>(random.below(4))));
  }
  return layers;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// The least exposed time by trying every split into whole bytes.
double exhaustive_s(const std::vector<GradientLayer>& layers, const cost::CostModel& all_reduce,
                    std::size_t at, double pool) {
  if (at == layers.size()) {
    return all_reduce.time_s(pool);
  }
  double least = std::numeric_limits<double>::infinity();
  for (double dense = 0; dense <= pool; ++dense) {
    const double dense_s = std::max(0.0, all_reduce.time_s(dense) - layers[at].dense_window_s);
    for (double moe = 0; dense + moe <= pool; ++moe) {
      const double moe_s =
          moe > 0 ? layers[at].moe_s(all_reduce.time_s(moe)) - layers[at].moe_s(0) : 0;
      least = std::min(least, dense_s + moe_s +
                                  exhaustive_s(layers, all_reduce, at + 1,
                                               pool - dense - moe + layers[at].bytes));
    }
  }
  return least;
}

TEST(GradientPartition, GreedyIsAsGoodAsExhaustiveSearch) {
  Random random(1);
  for (const double alpha : {0.0, 0.5, 1.5}) {
    const cost::CostModel all_reduce(alpha, 1);
    for (int round = 0; round < 120; ++round) {
      const auto layers = random_layers(random, 3);
      const auto greedy = partition_gradients(layers, all_reduce);
      const double best_s = exhaustive_s(layers, all_reduce, 0, 0);
      // Ours may cut bytes finer than the search; windows are found to 1e-9 of a MoE part.
      EXPECT_LE(greedy.exposed_s, best_s + 1e-7) << alpha << " " << round;
    }
  }
}

TEST(GradientPartition, EveryMethodSendsEveryByteOnceAndInTime) {
  Random random(2);
  for (int round = 0; round < 60; ++round) {
    const auto layers = random_layers(random, 1 + static_cast<int>(random.below(6)));
    const cost::CostModel all_reduce(random.uniform(), 0.5 + random.uniform());
    double produced = 0;
    for (const GradientLayer& layer : layers) {
      produced += layer.bytes;
    }
    for (const auto method :
         {GradientMethod::kGreedy, GradientMethod::kTwoStep, GradientMethod::kFixedPieces}) {
      const GradientOptions options{method, 2, 7};
      const auto partition = partition_gradients(layers, all_reduce, options);
      EXPECT_NEAR(
          sum_of(partition.dense_bytes) + sum_of(partition.moe_bytes) + partition.last_bytes,
          produced, 1e-9 * (1 + produced));
      EXPECT_EQ(partition_gradients(layers, all_reduce, options), partition);
      const double whole_s = exposed_s(layers, partition, all_reduce);  // checks the laws
      if (method != GradientMethod::kFixedPieces) {  // pieces pay the latency each
        EXPECT_NEAR(whole_s, partition.exposed_s, 1e-9 * (1 + whole_s));
      }
    }
  }
}

TEST(GradientPartition, GreedyIsAtLeastAsGoodAsTheOthersInTheMean) {
  Random random(3);
  double two_step = 0;
  double pieces = 0;
  double greedy = 0;
  for (int round = 0; round < 60; ++round) {
    const auto layers = random_layers(random, 6);
    const cost::CostModel all_reduce(0.3, 1);
    greedy += partition_gradients(layers, all_reduce).exposed_s;
    two_step += partition_gradients(layers, all_reduce, {GradientMethod::kTwoStep}).exposed_s;
    pieces += partition_gradients(layers, all_reduce, {GradientMethod::kFixedPieces, 2}).exposed_s;
  }
  EXPECT_LE(greedy, two_step * 1.001);
  EXPECT_LT(greedy, pieces);
}

TEST(GradientPartition, FindsTheMoeWindow) {
  EXPECT_NEAR(moe_window_s(layer_of(1, 0, 3)), 3, 1e-6);
  EXPECT_NEAR(moe_window_s(layer_of(1, 0, 0)), 0, 1e-6);
}

TEST(GradientLayersOf, TurnsLayersRoundAndSeesTheirWindows) {
  Random random(9);
  for (int round = 0; round < 10; ++round) {
    const std::vector<LayerWork> works = {random_layer(random), random_layer(random)};
    for (const double links : {0.0, 0.3}) {
      const cost::Contention contention = cost::uniform_contention(links);
      const auto layers = gradient_layers_of(works, contention, 8);
      ASSERT_EQ(layers.size(), 2U);
      EXPECT_EQ(layers[0].bytes, works[1].gradient.size);
      EXPECT_EQ(layers[1].dense_window_s, works[0].backward.dense_s());
      // As FSMoE plans the phase without gradients.
      LayerWork bare = works[1];
      bare.gradient = {};
      PlanOptions options;
      options.most_chunks = 8;
      const LayerPlan plan = plan_layer(kFsmoe, bare, contention, options);
      EXPECT_NEAR(layers[0].moe_s(0), plan.backward.moe_s, 1e-9);
      EXPECT_GE(layers[0].moe_s(1), layers[0].moe_s(0));
      EXPECT_LE(layers[0].moe_s(1), layers[0].moe_s(0) + 1 + 1e-9);
    }
  }
}

TEST(GradientPartition, AModelOfRealLayersHidesMoreThanTheOthersDo) {
  Random random(10);
  std::vector<LayerWork> works;
  for (int i = 0; i < 12; ++i) {
    works.push_back(random_layer(random));
    works.back().gradient = {cost::CostModel(0.3, 1e-6), 3e6 * random.uniform()};
  }
  const auto layers = gradient_layers_of(works, {});
  const cost::CostModel& all_reduce = works[0].gradient.model;
  const double ours = partition_gradients(layers, all_reduce).exposed_s;
  const GradientOptions pieces{GradientMethod::kFixedPieces, 5e5};
  EXPECT_LE(ours, partition_gradients(layers, all_reduce, pieces).exposed_s);
  EXPECT_LE(ours, partition_gradients(layers, all_reduce, {GradientMethod::kTwoStep}).exposed_s *
                      (1 + 1e-6));
}

TEST(GradientPartition, RefusesWhatCannotBe) {
  const std::vector<GradientLayer> layers = {layer_of(4, 1, 1), layer_of(4, 1, 1)};
  const cost::CostModel all_reduce(0, 1);
  GradientPartition early{{1, 0}, {0, 0}, 7, 0};  // layer 0 has nothing to send yet
  EXPECT_THROW(exposed_s(layers, early, all_reduce), Error);
  GradientPartition lost{{0, 1}, {0, 1}, 5, 0};
  EXPECT_THROW(exposed_s(layers, lost, all_reduce), Error);
  EXPECT_THROW(partition_gradients(std::vector{layer_of(-1, 0, 0)}, all_reduce), Error);
  EXPECT_THROW(partition_gradients(layers, all_reduce, {GradientMethod::kFixedPieces, 0}), Error);
  EXPECT_THROW(gradient_method_of("slsqp"), Error);
  EXPECT_EQ(gradient_method_of("two_step"), GradientMethod::kTwoStep);
  EXPECT_EQ(partition_gradients({}, all_reduce).exposed_s, 0);
}

TEST(DifferentialEvolution, FindsAMinimumAndRepeats) {
  const auto cost = [](std::span<const double> x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double off = x[i] - 0.1 * static_cast<double>(i + 1);
      sum += off * off;
    }
    return sum;
  };
  EvolutionOptions options;
  options.tolerance = 1e-9;
  const auto found = minimise_by_evolution(cost, std::vector<double>(4, 0.9), options);
  EXPECT_LT(cost(found), 1e-6);
  EXPECT_EQ(minimise_by_evolution(cost, std::vector<double>(4, 0.9), options), found);
  options.max_generations = 0;
  EXPECT_LE(cost(minimise_by_evolution(cost, {0.1, 0.2}, options)), 1e-12);  // keeps the start
}

}  // namespace
}  // namespace coterie::schedule
