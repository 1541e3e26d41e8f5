// SPDX-License-Identifier: Apache-2.0
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

TEST(Collaboration, CountsEqualBruteForce) {
  Random random(11);
  const auto ids = random_ids(random, 300, 3, 9, 7);
  const ExpertSets sets = make_expert_sets(ids, 3, 9);
  const auto pairs = count_pairs(sets);
  const auto loads = sets.expert_loads();
  Matrix<std::uint64_t> expected(9, 9);
  for (std::size_t row = 0; row < ids.size(); row += 3) {
    for (std::size_t i = row; i < row + 3; ++i) {
      for (std::size_t j = row; j < row + 3; ++j) {
        if (ids[i] != kNoExpert && ids[j] != kNoExpert) {
          ++expected(ids[i], ids[j]);
        }
      }
    }
  }
  EXPECT_EQ(pairs, expected);
  for (std::size_t e = 0; e < 9; ++e) {
    EXPECT_EQ(pairs(e, e), loads[e]);
  }
}

TEST(Collaboration, GraphIsMaskedAndScaled) {
  const std::vector<std::uint16_t> ids = {0, 1, 0, 1, 1, 2, 3, kNoExpert};
  const auto graph = collaboration_graph(count_pairs(make_expert_sets(ids, 2, 4)));
  EXPECT_EQ(graph(0, 1), 1.0);
  EXPECT_EQ(graph(1, 0), 1.0);
  EXPECT_EQ(graph(1, 2), 0.5);
  EXPECT_EQ(graph(0, 2), 0.0);
  for (std::size_t e = 0; e < 4; ++e) {
    EXPECT_EQ(graph(e, e), 0.0);
  }
}

TEST(Collaboration, WithoutPairsTheGraphIsZero) {
  const std::vector<std::uint16_t> ids = {0, 1, 1};
  const auto graph = collaboration_graph(count_pairs(make_expert_sets(ids, 1, 2)));
  EXPECT_EQ(graph, Matrix<double>(2, 2));
}

}  // namespace
}  // namespace coterie::routing
