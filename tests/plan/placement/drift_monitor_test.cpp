// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/drift_monitor.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/drift.hpp"
#include "coterie/plan/placement/place_layer.hpp"

namespace coterie::placement {
namespace {

TEST(CoactivationCounts, FollowTheFormulaInAnyBatches) {
  Random random(3);
  std::vector<std::int32_t> ids;
  for (int t = 0; t < 400; ++t) {
    const auto a = static_cast<std::int32_t>(random.below(5));
    ids.push_back(a);
    ids.push_back(t % 7 == 0 ? -1 : (a + 1) % 5);
  }
  constexpr double kHalfLife = 3;  // the weights overflow unless they are scaled
  CoactivationCounts whole(5, kHalfLife);
  whole.add(ids, 2);
  CoactivationCounts parts(5, kHalfLife);
  for (std::size_t begin = 0; begin < ids.size(); begin += 50) {
    parts.add(std::span(ids).subspan(begin, 50), 2);
  }
  double tokens = 0;
  Matrix<double> expected(5, 5, 0.0);
  for (std::size_t t = 0; t < 400; ++t) {
    const double weight = std::exp2(-static_cast<double>(399 - t) / kHalfLife);
    tokens += weight;
    for (const std::int32_t a : {ids[2 * t], ids[2 * t + 1]}) {
      for (const std::int32_t b : {ids[2 * t], ids[2 * t + 1]}) {
        if (a >= 0 && b >= 0) {
          expected(static_cast<std::size_t>(a), static_cast<std::size_t>(b)) += weight;
        }
      }
    }
  }
  EXPECT_NEAR(whole.num_tokens(), tokens, 1e-9);
  for (std::size_t a = 0; a < 5; ++a) {
    for (std::size_t b = 0; b < 5; ++b) {
      EXPECT_NEAR(whole.pairs()(a, b), expected(a, b), 1e-9);
      EXPECT_NEAR(parts.pairs()(a, b), expected(a, b), 1e-9);
    }
  }
  EXPECT_THROW(whole.add(std::vector<std::int32_t>{5, 0}, 2), Error);
  EXPECT_THROW(CoactivationCounts(5, 0), Error);
}

/// Tokens that choose two experts of one pair (2i, 2i + 1), or with `mixed` of (i, i + 4).
std::vector<std::int32_t> tokens_of(Random& random, int count, bool mixed) {
  std::vector<std::int32_t> ids;
  for (int t = 0; t < count; ++t) {
    const auto i = static_cast<std::int32_t>(random.below(4));
    ids.push_back(mixed ? i : 2 * i);
    ids.push_back(mixed ? i + 4 : 2 * i + 1);
  }
  return ids;
}

TEST(DriftMonitor, SaysSpreadOnceAndLeadsToTheBetterPlacement) {
  Random random(5);
  DriftMonitor monitor(contiguous_placement(8, 4), {200, 1.5, 0.2, 500, 1000});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(monitor.add(tokens_of(random, 100, false), 2), DriftVerdict::kSteady);
  }
  EXPECT_DOUBLE_EQ(monitor.replicas(), 1);
  int num_verdicts = 0;
  for (int i = 0; i < 10; ++i) {
    const DriftVerdict verdict = monitor.add(tokens_of(random, 100, true), 2);
    num_verdicts += verdict == DriftVerdict::kSpread ? 1 : 0;
    EXPECT_NE(verdict, DriftVerdict::kLoad);
  }
  EXPECT_EQ(num_verdicts, 1);  // then it waits
  EXPECT_GT(monitor.replicas(), 1.9);
  PlacementOptions options;
  options.num_devices = 4;
  options.load_cap = 1.5;
  monitor.placed(place_layer(monitor.counts().pair_sets(), "coterie", options));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(monitor.add(tokens_of(random, 100, true), 2), DriftVerdict::kSteady);
  }
  EXPECT_DOUBLE_EQ(monitor.replicas(), 1);
}

TEST(DriftMonitor, LooksAtLoadFirst) {
  DriftMonitor monitor(contiguous_placement(4, 2), {100, 1.25, 0.05, 10, 10});
  const std::vector<std::int32_t> even = {0, 1, 2, 3};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(monitor.add(even, 2), DriftVerdict::kSteady);
  }
  std::vector<std::int32_t> uneven;  // five of six picks on the first device, and C_T grows too
  for (int i = 0; i < 100; ++i) {
    uneven.insert(uneven.end(), {0, 1, 0, 1, 0, 2});
  }
  EXPECT_EQ(monitor.add(uneven, 2), DriftVerdict::kLoad);
  EXPECT_GT(monitor.replicas(), 1.05);
  EXPECT_GT(monitor.load_imbalance(), 1.25);
}

TEST(LimitMoves, GoesHomeInBoundedSteps) {
  Random random(7);
  const LayerPlacement from = contiguous_placement(16, 4);
  LayerPlacement to = from;
  to.experts_of_device = {{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}};
  LayerPlacement at = from;
  int num_turns = 0;
  while (at != to && num_turns < 20) {
    const LayerPlacement next = limit_moves(at, to, 4);
    check_layer_placement(next, "test");
    EXPECT_LE(count_moved(at, next), 4);
    EXPECT_LT(count_moved(next, to), count_moved(at, to));
    at = next;
    ++num_turns;
  }
  EXPECT_EQ(at, to);
  EXPECT_LE(num_turns, 6);
  EXPECT_EQ(limit_moves(from, to, 100), to);
  EXPECT_EQ(limit_moves(from, to, 1), from);
  LayerPlacement copies = to;
  copies.experts_of_device[0].push_back(15);
  EXPECT_THROW(limit_moves(from, copies, 4), Error);
}

}  // namespace
}  // namespace coterie::placement
