// SPDX-License-Identifier: Apache-2.0
// The order in which rows enter the sums of weight gradients (docs/design/017), pinned bit by bit
// from the outside: bias gradients are written out here as sums in that order. Sums in any other
// order differ, so an order that is replaced is noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/run/layer/training_case.hpp"

namespace coterie::layer {
namespace {

constexpr std::int64_t kBlock = 64;  // tokens of a block, by place in the rank's batch

struct Row {
  std::int64_t token = 0;  // of the case's
  std::int32_t pick = 0;
};

/// An expert's rows as the note orders them: block by block, then rank by rank, then by token.
std::vector<Row> noted_order(const TrainingCase& made, std::int32_t expert) {
  std::vector<Row> rows;
  for (std::int64_t block = 0; block * kBlock < made.num_tokens(); ++block) {
    for (int rank = 0; rank < made.num_ranks(); ++rank) {
      const std::int64_t first = made.offsets[static_cast<std::size_t>(rank)];
      const std::int64_t end = made.offsets[static_cast<std::size_t>(rank) + 1];
      for (std::int64_t t = first + block * kBlock; t < std::min(end, first + (block + 1) * kBlock);
           ++t) {
        for (std::int32_t i = 0; i < made.top_k; ++i) {
          if (made.ids[static_cast<std::size_t>(t * made.top_k + i)] == expert) {
            rows.push_back({t, i});
          }
        }
      }
    }
  }
  return rows;
}

/// dL/d(down_bias) [H]: weight * dL/dy, rounded, then added, one after another.
std::vector<float> bias_gradient(const TrainingCase& made, const std::vector<Row>& rows) {
  std::vector<float> sums(static_cast<std::size_t>(made.options.hidden), 0.0F);
  for (const Row& row : rows) {
    const auto weight = static_cast<float>(made.weights.at(row.token, row.pick));
    for (std::size_t c = 0; c < sums.size(); ++c) {
      const float term =
          weight * static_cast<float>(made.grad_y.at(row.token, static_cast<std::int64_t>(c)));
      sums[c] += term;
    }
  }
  return sums;
}

/// The same of a run; experts lie device by device, four parameters each, down_bias last.
std::vector<float> found_gradient(const TrainingOutcome& outcome, std::int32_t expert) {
  const auto& bytes = outcome.experts.at(static_cast<std::size_t>(expert) * 4 + 3);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(RowOrder, WeightGradientsAreSumsInTheNotedOrder) {
  TrainingCase made =
      training_case(21, 4, kernels::DType::kFloat32, kernels::Activation::kGeluTanh);
  made.options.forward_chunks = 2;
  made.options.backward_chunks = 3;
  const TrainingOutcome alone = run_alone(made);
  const TrainingOutcome ranks = joined(run_as_ranks(made));
  int num_by_source = 0;
  int num_backwards = 0;
  for (std::int32_t expert = 0; expert < made.options.num_experts; ++expert) {
    std::vector<Row> rows = noted_order(made, expert);
    const std::vector<float> wanted = bias_gradient(made, rows);
    EXPECT_EQ(found_gradient(alone, expert), wanted) << expert;
    EXPECT_EQ(found_gradient(ranks, expert), wanted) << expert;
    // The test would notice: source by source (as rows arrive in one chunk), and backwards.
    std::ranges::stable_sort(rows, {}, &Row::token);
    num_by_source += bias_gradient(made, rows) != wanted ? 1 : 0;
    std::ranges::reverse(rows);
    num_backwards += bias_gradient(made, rows) != wanted ? 1 : 0;
  }
  EXPECT_GT(num_by_source, made.options.num_experts / 2);
  EXPECT_GT(num_backwards, made.options.num_experts / 2);
}

}  // namespace
}  // namespace coterie::layer
