// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "gate_case.hpp"

namespace coterie::gates {
namespace {

/// ids and weights of one token by the formula, in plain loops.
struct PlainChoice {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
};

PlainChoice plain_choice(const std::vector<double>& logits, const GateOptions& o) {
  PlainChoice choice;
  choice.ids.resize(logits.size());
  std::iota(choice.ids.begin(), choice.ids.end(), 0);
  std::stable_sort(choice.ids.begin(), choice.ids.end(), [&](auto a, auto b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  double all = 0.0;
  for (const double logit : logits) {
    all += std::exp(logit);
  }
  choice.ids.resize(static_cast<std::size_t>(o.top_k));
  double kept = 0.0;
  for (const auto id : choice.ids) {
    kept += std::exp(logits[static_cast<std::size_t>(id)]);
  }
  const bool over_kept = o.renormalise || o.softmax_over == SoftmaxOver::kSelected;
  for (const auto id : choice.ids) {
    choice.weights.push_back(std::exp(logits[static_cast<std::size_t>(id)]) /
                             (over_kept ? kept : all));
  }
  return choice;
}

std::vector<GateOptions> modes(std::int32_t num_experts, std::int32_t top_k) {
  GateOptions before = small_gate(GateKind::kTopkSoftmax, num_experts, top_k);
  GateOptions norm = before;
  norm.renormalise = true;
  GateOptions after = before;
  after.softmax_over = SoftmaxOver::kSelected;
  return {before, norm, after};
}

TEST(TopkSoftmax, EqualsTheFormula) {
  for (const auto& [E, k] : {std::pair{8, 2}, {8, 8}, {5, 1}, {64, 8}, {1024, 16}, {300, 40}}) {
    for (const GateOptions& o : modes(E, k)) {
      const auto gate = make_gate(o);
      randomize(*gate, 4);
      const TokenBatch batch = random_batch({9, 0, 4}, o.hidden, 1);
      const Routing routing = gate->forward(batch);
      ASSERT_EQ(routing.ids.sizes(), (std::vector<std::int64_t>{13, k}));
      EXPECT_EQ(routing.weights.scalar_type(), at::kDouble);
      const at::Tensor logits = at::mm(batch.x, gate->parameters()[0].detach().t());
      EXPECT_LT(max_difference(routing.logits.detach(), logits), 1e-12);
      for (std::int64_t t = 0; t < 13; ++t) {
        const at::Tensor row = routing.logits[t].detach().contiguous();
        const PlainChoice plain =
            plain_choice({row.const_data_ptr<double>(), row.const_data_ptr<double>() + E}, o);
        for (std::int64_t i = 0; i < k; ++i) {
          const auto at = static_cast<std::size_t>(i);
          EXPECT_EQ(routing.ids[t][i].item<std::int64_t>(), plain.ids[at]);
          EXPECT_NEAR(routing.weights[t][i].item<double>(), plain.weights[at], 1e-13);
        }
      }
    }
  }
}

TEST(TopkSoftmax, TheTwoOrdersAgreeWithNormOnAndDifferWithNormOff) {
  const auto all = modes(8, 3);
  const TokenBatch batch = random_batch({20}, 6, 2);
  std::vector<at::Tensor> weights;
  for (const GateOptions& o : all) {
    const auto gate = make_gate(o);
    randomize(*gate, 4);
    weights.push_back(gate->forward(batch).weights.detach());
  }
  EXPECT_LT(max_difference(weights[1], weights[2]), 1e-14);
  EXPECT_GT(max_difference(weights[0], weights[1]), 1e-3);
  EXPECT_TRUE(weights[0].gt(0).logical_and(weights[0].sum(1, true).lt(1)).all().item<bool>());
}

TEST(TopkSoftmax, TopOneWithNormIsExactlyOne) {
  GateOptions o = small_gate(GateKind::kTopkSoftmax, 4, 1);
  o.renormalise = true;
  const at::Tensor weights = make_gate(o)->forward(random_batch({3}, 6, 1)).weights;
  EXPECT_TRUE(at::equal(weights, at::ones({3, 1}, at::kDouble)));
}

}  // namespace
}  // namespace coterie::gates
