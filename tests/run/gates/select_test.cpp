// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "gate_case.hpp"

namespace coterie::gates {
namespace {

TEST(SelectTopK, EqualsAStableSortWithManyTies) {
  kernels::Threads pool(3);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const std::int64_t N : {1, 2, 7, 64, 257, 1024}) {
      for (const std::int64_t k : {0, 1, 2, 16, 33, 300, 1024}) {
        if (k > N) {
          continue;
        }
        // One decimal: many exact ties; and some rows are nearly all -inf.
        at::Tensor scores = (random_values({130, N}, 5) * 3).round().div(10).to(type);
        scores.narrow(0, 0, 20)
            .narrow(1, N / 3, N - N / 3)
            .fill_(-std::numeric_limits<double>::infinity());
        const at::Tensor expected = select_top_k_reference(scores, k);
        EXPECT_TRUE(at::equal(select_top_k(scores, k), expected)) << N << " " << k;
        EXPECT_TRUE(at::equal(select_top_k(scores, k, {&pool}), expected)) << N << " " << k;
      }
    }
  }
}

TEST(SelectTopK, KeepsTheOrderOfScoresThatDifferInTheLastBit) {
  at::Tensor scores = at::zeros({1, 3}, at::kFloat);
  scores[0][0] = 1.0F;
  scores[0][2] = std::nextafter(1.0F, 2.0F);
  EXPECT_TRUE(at::equal(select_top_k(scores, 2), at::tensor({2, 0}, at::kLong).view({1, 2})));
}

TEST(SelectTopK, SeesTheLastOfManyExperts) {
  for (const std::int64_t E : {257, 300, 512, 1024}) {
    at::Tensor scores = at::zeros({2, E}, at::kFloat);
    scores.select(1, E - 1).fill_(1.0);
    EXPECT_TRUE(select_top_k(scores, 1).eq(E - 1).all().item<bool>()) << E;
  }
}

TEST(SelectTopK, TakesRowsThatDoNotLieInOnePiece) {
  const at::Tensor scores = random_values({9, 12}, 3).t();
  EXPECT_TRUE(at::equal(select_top_k(scores, 4), select_top_k_reference(scores, 4)));
}

}  // namespace
}  // namespace coterie::gates
