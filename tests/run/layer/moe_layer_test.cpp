// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "coterie/base/error.hpp"
#include "tests/run/layer/toy_layer.hpp"

namespace coterie::layer {
namespace {

using kernels::DType;

/// The layer by its formula, in double, straight from the weights; nothing of ours is used.
std::vector<double> by_formula(const ToyLayer& toy, const Values& x, std::int64_t num_tokens) {
  const auto& o = toy.options;
  std::vector<double> y(static_cast<std::size_t>(num_tokens * o.hidden), 0.0);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::vector<double> scores(static_cast<std::size_t>(o.num_experts));
    for (std::int32_t e = 0; e < o.num_experts; ++e) {
      for (std::int64_t h = 0; h < o.hidden; ++h) {
        scores[static_cast<std::size_t>(e)] += double{toy.router.at(e, h)} * x.at(t, h);
      }
    }
    double sum = 0;
    for (double& score : scores) {
      score = std::exp(score);
      sum += score;
    }
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    order.resize(static_cast<std::size_t>(o.top_k));
    double kept = 0;
    for (const std::size_t e : order) {
      kept += scores[e];
    }
    for (const std::size_t e : order) {
      const double weight = scores[e] / (o.norm_topk_prob ? kept : sum);
      for (std::int64_t i = 0; i < o.intermediate; ++i) {
        double gate = 0;
        double up = 0;
        for (std::int64_t h = 0; h < o.hidden; ++h) {
          gate += double{toy.gate_up[e].at(i, h)} * x.at(t, h);
          up += double{toy.gate_up[e].at(o.intermediate + i, h)} * x.at(t, h);
        }
        const double inner = gate / (1.0 + std::exp(-gate)) * up;
        for (std::int64_t h = 0; h < o.hidden; ++h) {
          y[static_cast<std::size_t>(t * o.hidden + h)] += weight * toy.down[e].at(h, i) * inner;
        }
      }
    }
  }
  return y;
}

TEST(MoeLayer, EqualsTheFormula) {
  for (const bool norm : {false, true}) {
    for (const std::int32_t top_k : {1, 3, 8}) {
      ToyLayer toy(static_cast<std::uint64_t>(top_k), 8, top_k);
      toy.options.norm_topk_prob = norm;
      Random random(5);
      const Values x(random, 9, toy.options.hidden, 1.0);
      MoeLayer layer(toy.options, toy.weights());
      const auto y = floats_of(forward(layer, x.view()));
      const auto expected = by_formula(toy, x, 9);
      ASSERT_EQ(y.size(), expected.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], 2e-5) << i;
      }
    }
  }
}

TEST(MoeLayer, NoPlacementIsOneDevice) {
  const ToyLayer toy(1, 6, 3);
  Random random(2);
  const Values x(random, 11, toy.options.hidden, 1.0);
  MoeLayer plain(toy.options, toy.weights());
  MoeLayer one(toy.options, toy.weights(), placement::contiguous_placement(6, 1));
  EXPECT_EQ(forward(plain, x.view()), forward(one, x.view()));
}

TEST(MoeLayer, PlainLoopsAndPartsChangeNoBit) {
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    for (const kernels::Backend backend : kernels::available_backends()) {
      ToyLayer toy(3, 7, 4, type);
      Random random(2);
      const Values x(random, 33, toy.options.hidden, 1.0, type);
      const auto placement = placement::LayerPlacement{7, {{0, 3, 6}, {1}, {2, 4, 5}}, {}};
      MoeLayer fast(toy.options, toy.weights(), placement, nullptr, {nullptr, backend});
      toy.options.exchange.max_expanded_rows = 5;
      MoeLayer in_parts(toy.options, toy.weights(), placement, nullptr, {nullptr, backend});
      toy.options.plain_loops = true;
      MoeLayer loops(toy.options, toy.weights(), placement, nullptr, {nullptr, backend});
      const auto expected = forward(loops, x.view());
      EXPECT_EQ(forward(fast, x.view()), expected) << kernels::name_of(backend);
      EXPECT_EQ(forward(in_parts, x.view()), expected) << kernels::name_of(backend);
    }
  }
}

TEST(MoeLayer, ARowDependsOnNoOtherRowOrThread) {
  const ToyLayer toy(4, 8, 2);
  Random random(9);
  const Values x(random, 70, toy.options.hidden, 1.0);
  kernels::Threads threads(3);
  MoeLayer alone(toy.options, toy.weights(), placement::contiguous_placement(8, 3));
  MoeLayer together(toy.options, toy.weights(), placement::contiguous_placement(8, 3), nullptr,
                    {&threads});
  const auto all = forward(together, x.view());
  std::vector<std::byte> rows;
  for (std::int64_t row = 0; row < 70; ++row) {
    const auto y = forward(alone, x.view(row, 1));
    rows.insert(rows.end(), y.begin(), y.end());
  }
  EXPECT_EQ(all, rows);
}

TEST(MoeLayer, RecordSaysWhatWasRouted) {
  const ToyLayer toy(6, 6, 2);
  Random random(3);
  const Values x(random, 5, toy.options.hidden, 1.0);
  MoeLayer layer(toy.options, toy.weights(), placement::contiguous_placement(6, 2));
  RoutingRecord record;
  record.keep_logits = true;
  const auto y = forward(layer, x.view(), &record);
  EXPECT_EQ(record.num_tokens, 5);
  EXPECT_EQ(record.top_k, 2);
  ASSERT_EQ(record.logits.size(), 30U);
  std::uint64_t rows = 0;
  for (std::size_t t = 0; t < 5; ++t) {
    const auto logits = std::span(record.logits).subspan(6 * t, 6);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(record.expert_ids[2 * t], best);
    EXPECT_GE(record.weights[2 * t], record.weights[2 * t + 1]);
    const auto a = record.device_of_pick[2 * t];
    const auto b = record.device_of_pick[2 * t + 1];
    EXPECT_EQ(a, record.expert_ids[2 * t] / 3);
    EXPECT_EQ(b, record.expert_ids[2 * t + 1] / 3);
    rows += a == b ? 1U : 2U;
  }
  EXPECT_EQ(record.predicted.rows_to[0] + record.predicted.rows_to[1], rows);
  EXPECT_EQ(record.rows_received[0] + record.rows_received[1], static_cast<std::int64_t>(rows));

  // The same routing given from outside gives the same rows.
  std::vector<float> again(y.size() / sizeof(float));
  const kernels::MatrixView out{again.data(), 5, 24, 24, DType::kFloat32};
  RoutingRecord second;
  layer.forward_routed(x.view(), {record.expert_ids, record.weights, {}}, out, &second);
  EXPECT_EQ(floats_of(y), again);
  EXPECT_EQ(second.expert_ids, record.expert_ids);
  EXPECT_EQ(second.predicted, record.predicted);
  EXPECT_TRUE(second.logits.empty());
  record.keep_logits = false;
  forward(layer, x.view(), &record);
  EXPECT_TRUE(record.logits.empty());
}

TEST(MoeLayer, CopiesAreChosenAsThePlacementRoomDoes) {
  const ToyLayer toy(6, 6, 3);
  Random random(4);
  const Values x(random, 40, toy.options.hidden, 1.0);
  const placement::LayerPlacement placement{6, {{0, 1, 2, 5}, {0, 3, 4}, {2, 3, 5}}, {}};
  const placement::ReplicaChooser chooser(placement);
  MoeLayer layer(toy.options, toy.weights(), placement);
  RoutingRecord record;
  forward(layer, x.view(), &record);
  std::uint64_t rows = 0;
  for (std::size_t pick = 0; pick < record.expert_ids.size(); pick += 3) {
    std::array<std::int32_t, 3> expected{};
    chooser.choose(std::span(record.expert_ids).subspan(pick, 3), expected);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), record.device_of_pick.data() + pick));
    std::sort(expected.begin(), expected.end());
    rows += static_cast<std::uint64_t>(std::unique(expected.begin(), expected.end()) -
                                       expected.begin());
  }
  EXPECT_EQ(std::accumulate(record.predicted.rows_to.begin(), record.predicted.rows_to.end(),
                            std::uint64_t{0}),
            rows);
  // Given ids without devices are served in the same way; ids out of range are refused first.
  std::vector<float> y(40 * 24);
  const kernels::MatrixView out{y.data(), 40, 24, 24, DType::kFloat32};
  RoutingRecord given;
  layer.forward_routed(x.view(), {record.expert_ids, record.weights, {}}, out, &given);
  EXPECT_EQ(given.device_of_pick, record.device_of_pick);
  record.expert_ids[4] = 6;
  EXPECT_THROW(layer.forward_routed(x.view(), {record.expert_ids, record.weights, {}}, out), Error);
}

TEST(MoeLayer, NoExpertAddsExactZero) {
  const ToyLayer toy(8, 4, 2);
  Random random(3);
  const Values x(random, 3, toy.options.hidden, 1.0);
  MoeLayer layer(toy.options, toy.weights(), placement::contiguous_placement(4, 2));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> with_none(72, nan);
  std::vector<float> one_expert(72, nan);
  const auto view = [](std::vector<float>& y) {
    return kernels::MatrixView{y.data(), 3, 24, 24, DType::kFloat32};
  };
  layer.forward_routed(x.view(),
                       {std::vector<std::int32_t>{-1, 2, -1, -1, 1, -1},
                        std::vector<float>{nan, 0.5F, nan, nan, 0.25F, nan},
                        {}},
                       view(with_none));
  layer.forward_routed(x.view(),
                       {std::vector<std::int32_t>{2, 0, 0, 1, 1, 0},
                        std::vector<float>{0.5F, 0.0F, 0.0F, 0.0F, 0.25F, 0.0F},
                        {}},
                       view(one_expert));
  for (std::size_t i = 0; i < 72; ++i) {
    EXPECT_EQ(with_none[i], one_expert[i]) << i;
  }
  EXPECT_TRUE(std::all_of(with_none.begin() + 24, with_none.begin() + 48,
                          [](float value) { return value == 0.0F; }));
}

TEST(MoeLayer, ABadTokenSpoilsNoOtherAndIsNamed) {
  const ToyLayer toy(9, 5, 2);
  Random random(3);
  Values x(random, 4, toy.options.hidden, 1.0);
  MoeLayer layer(toy.options, toy.weights(), placement::contiguous_placement(5, 2));
  const auto good = floats_of(forward(layer, x.view()));
  x.at(2, 7) = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y(good.size(), 7.0F);
  try {
    layer.forward(x.view(), {y.data(), 4, 24, 24, DType::kFloat32});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_STREQ(error.what(),
                 "layer 3: token 2: its router logits hold NaN or +inf, or are all -inf");
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y[i], i / 24 == 2 ? 0.0F : good[i]) << i;
  }
}

TEST(MoeLayer, LayersThatTakeTurnsShareTheirMemory) {
  const ToyLayer first(10, 5, 2);
  const ToyLayer second(11, 9, 4);
  Random random(3);
  const Values x(random, 30, first.options.hidden, 1.0);
  const auto placement = placement::contiguous_placement(5, 2);
  MoeLayer alone_1(first.options, first.weights(), placement);
  MoeLayer alone_2(second.options, second.weights());
  const auto workspace = std::make_shared<Workspace>();
  MoeLayer shared_1(first.options, first.weights(), placement, nullptr, {}, workspace);
  MoeLayer shared_2(second.options, second.weights(), {}, nullptr, {}, workspace);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(forward(shared_1, x.view()), forward(alone_1, x.view()));
    EXPECT_EQ(forward(shared_2, x.view()), forward(alone_2, x.view()));
  }
  EXPECT_GT(workspace->rows->capacity(), 0U);
}

TEST(MoeLayer, NoTokensIsNoError) {
  const ToyLayer toy(9, 5, 2);
  MoeLayer layer(toy.options, toy.weights(), placement::contiguous_placement(5, 2));
  RoutingRecord record;
  layer.forward({nullptr, 0, 24, 24, DType::kFloat32}, {nullptr, 0, 24, 24, DType::kFloat32},
                &record);
  EXPECT_EQ(record.num_tokens, 0);
  EXPECT_TRUE(record.expert_ids.empty());
}

/// The message with which a layer is refused.
std::string refusal(const MoeOptions& options, const MoeWeights& weights,
                    std::optional<placement::LayerPlacement> placement = {}) {
  try {
    MoeLayer(options, weights, std::move(placement));
    return "";
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
    return error.what();
  }
}

TEST(MoeLayer, SizesThatDoNotFitAreNamed) {
  const ToyLayer toy(9, 5, 2);
  MoeOptions options = toy.options;
  options.top_k = 6;
  EXPECT_EQ(refusal(options, toy.weights()), "layer 3: top_k is 6, not in [1, 5]");
  options.top_k = 0;
  EXPECT_EQ(refusal(options, toy.weights()), "layer 3: top_k is 0, not in [1, 5]");
  options = toy.options;
  options.hidden = 0;
  EXPECT_EQ(refusal(options, toy.weights()), "layer 3: hidden size is 0");
  options = toy.options;
  options.intermediate = 21;
  EXPECT_EQ(refusal(options, toy.weights()),
            "layer 3: expert 0: gate_up is [40, 24], not [42, 24]");
  EXPECT_EQ(refusal(toy.options, toy.weights(), placement::contiguous_placement(6, 2)),
            "layer 3: the placement is for 6 experts, the layer has 5");
  EXPECT_EQ(refusal(toy.options, toy.weights({0, 1, 2, 4})),
            "layer 3: expert 3: gate_up is missing, but this process computes it");
  MoeWeights weights = toy.weights();
  weights.down.pop_back();
  EXPECT_EQ(refusal(toy.options, weights), "layer 3: there are weights of 4 experts, not 5");
  weights = toy.weights();
  weights.router.rows = 4;
  EXPECT_EQ(refusal(toy.options, weights), "layer 3: router is [4, 24], not [5, 24]");
  weights = toy.weights();
  weights.down[1].type = DType::kInt32;
  EXPECT_EQ(refusal(toy.options, weights),
            "layer 3: expert 1: down is neither float32 nor bfloat16");
}

TEST(MoeLayer, RowsThatDoNotFitAreNamed) {
  const ToyLayer toy(9, 5, 2);
  MoeLayer layer(toy.options, toy.weights());
  std::vector<float> y(100);
  const auto forward_of = [&](std::int64_t x_columns, std::int64_t y_rows) -> std::string {
    try {
      layer.forward({y.data(), 2, x_columns, 24, DType::kFloat32},
                    {y.data(), y_rows, 24, 24, DType::kFloat32});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(forward_of(23, 2), "layer 3: x is [2, 23], not [2, 24]");
  EXPECT_EQ(forward_of(24, 1), "layer 3: y is [1, 24], not [2, 24]");
}

}  // namespace
}  // namespace coterie::layer
