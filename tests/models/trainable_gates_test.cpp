// SPDX-License-Identifier: Apache-2.0
// Every gate, in every order, with SwiGLU and GPT-2 experts, where the model is spread over heads
// and tokens (MP) and over stages (GPipe) too, against one process: fp64 losses, counts and all
// gradients; ragged sequences, ranks without tokens, idle experts. tests/run/nn/gate_matrix_test
// has the layer alone against a plain loop over the experts.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "tests/models/training_case.hpp"

namespace coterie::models {
namespace {

using gates::GateKind;
using gates::GateOptions;
using gates::OrderKind;
using gates::OrderOptions;

struct Combination {
  std::string name;
  GateOptions gate;
  OrderOptions order;
  std::int64_t top_k = 2;
};

std::ostream& operator<<(std::ostream& out, const Combination& combination) {
  return out << combination.gate << " " << combination.order;
}

std::vector<Combination> combinations() {
  struct Kind {
    GateKind kind;
    std::int64_t top_k;
    std::function<void(GateOptions&)> change;
  };
  const std::vector<Kind> kinds = {
      {GateKind::kTopkSoftmax, 3, [](GateOptions&) {}},
      {GateKind::kTopkSoftmax, 2,
       [](GateOptions& o) { o.softmax_over = gates::SoftmaxOver::kSelected; }},
      {GateKind::kGshard, 2, [](GateOptions&) {}},
      {GateKind::kSwitch, 1, [](GateOptions& o) { o.jitter = 0.2; }},
      {GateKind::kSigmoid, 1, [](GateOptions&) {}},
      {GateKind::kDeepseek, 3,
       [](GateOptions& o) {
         o.renormalise = o.selection_bias = true;
         o.num_groups = 4;
         o.num_groups_kept = 2;
         o.scaling = 1.5;
       }},
      {GateKind::kXmoe, 2, [](GateOptions&) {}},
      {GateKind::kExpertChoice, 1, [](GateOptions& o) { o.capacity_factor = 1.5; }},
      {GateKind::kSoftMoe, 1, [](GateOptions& o) { o.slots_per_expert = 2; }}};
  std::vector<Combination> all;
  for (const Kind& kind : kinds) {
    Combination made;
    made.gate.kind = kind.kind;
    made.top_k = kind.top_k;
    const bool within = kind.kind == GateKind::kExpertChoice || kind.kind == GateKind::kSoftMoe;
    made.gate.balance = {within ? 0.0 : 0.02, 0.001};
    kind.change(made.gate);
    std::vector<OrderOptions> orders = {{OrderKind::kIndex, "order", {}},
                                        {OrderKind::kEinsum, "order", {}}};
    if (kind.kind == GateKind::kSoftMoe) {
      orders = {{OrderKind::kSlots, "order", {}}};
    } else if (!within) {
      orders.push_back({OrderKind::kIndex, "order", {0.8}});
      orders.push_back({OrderKind::kEinsum, "order", {0.8}});
    }
    for (const OrderOptions& order : orders) {
      made.order = order;
      made.name = std::string(gates::name_of(kind.kind)) + "_" + gates::name_of(order.kind) +
                  (order.capacity.factor > 0 ? "_capacity_" : "_") + std::to_string(all.size());
      all.push_back(made);
    }
  }
  return all;
}

/// MP and stages alone and with each of DP, EP and ESP: data, model, expert, expert_shard,
/// pipeline.
const std::vector<parallel::LayoutOptions> kLayouts = {
    {1, 2, 1, 1, 1}, {1, 2, 2, 1, 1}, {1, 2, 1, 2, 1}, {1, 4, 2, 2, 1},
    {2, 2, 4, 1, 1}, {2, 2, 2, 2, 1}, {1, 1, 1, 1, 2}, {2, 1, 2, 1, 2},
    {2, 1, 1, 2, 2}, {1, 2, 2, 1, 2}, {1, 2, 1, 2, 2}};

void expect_equal(const Gradients& found, const Gradients& expected) {
  EXPECT_NEAR(found.loss, expected.loss, 1e-12);
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (std::size_t i = 0; i < found.layers.size(); ++i) {
    EXPECT_EQ(found.layers[i].routing.picks_per_expert,
              expected.layers[i].routing.picks_per_expert);
    EXPECT_EQ(found.layers[i].routing.num_dropped_picks,
              expected.layers[i].routing.num_dropped_picks);
  }
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, wanted] : expected.gradients) {
    const at::Tensor& got = found.gradients.at(name);
    const double scale = std::max(1e-3, wanted.abs().max().item<double>());
    EXPECT_LT((got - wanted).abs().max().item<double>() / scale, 1e-10) << name;
  }
}

/// Gradients of experts that nobody picked are exact zeros; returns how many such there are.
std::int64_t check_idle_experts(const Gradients& found) {
  std::int64_t idle = 0;
  for (const LayerStatistics& layer : found.layers) {
    for (std::size_t e = 0; e < layer.routing.picks_per_expert.size(); ++e) {
      if (layer.routing.picks_per_expert[e] > 0) {
        continue;
      }
      ++idle;
      const std::string number = std::to_string(layer.layer) + ".";
      const std::string part = ".experts." + std::to_string(e) + ".";
      std::int64_t num_found = 0;
      for (const auto& [name, gradient] : found.gradients) {
        const bool is_here = name.starts_with("model.layers." + number) ||
                             name.starts_with("transformer.h." + number);
        if (is_here && name.find(part) != std::string::npos) {
          ++num_found;
          EXPECT_TRUE(gradient.eq(0).all().item<bool>()) << name;
        }
      }
      EXPECT_GE(num_found, 2) << part;
    }
  }
  return idle;
}

class GatesSpread : public testing::TestWithParam<Combination> {};

TEST_P(GatesSpread, LossAndGradientsAreThoseOfOneProcess) {
  for (const std::string family : {"mixtral", "gpt2_moe"}) {
    TrainableConfig config = tiny_config(family);
    config.model.top_k = static_cast<std::int32_t>(GetParam().top_k);
    TrainableOptions options = tiny_options();
    options.gate = GetParam().gate;
    options.order = GetParam().order;
    options.forward_chunks = 2;
    // All sequences, then one alone: most ranks have none.
    for (const std::size_t num_sequences : {7, 1}) {
      if (num_sequences == 1 && config.is_gpt2()) {
        continue;  // takes no other way than mixtral
      }
      const Gradients expected = gradients_of(config, options, {}, 2, num_sequences);
      check_idle_experts(expected);
      for (const parallel::LayoutOptions& layout : kLayouts) {
        SCOPED_TRACE(family + ", " + parallel::format_options(layout) + ", " +
                     std::to_string(num_sequences) + " sequences");
        const Gradients found = gradients_of(config, options, layout, 2, num_sequences);
        expect_equal(found, expected);
        check_idle_experts(found);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, GatesSpread, testing::ValuesIn(combinations()),
                         [](const auto& combination) { return combination.param.name; });

TEST(SpreadModel, FewTokensLeaveExpertsIdle) {
  TrainableConfig config = tiny_config("mixtral");
  TrainableOptions options = tiny_options();
  config.model.top_k = 1;
  options.gate.kind = GateKind::kSwitch;
  // Eleven tokens, one expert each, two layers of eight.
  EXPECT_GT(check_idle_experts(gradients_of(config, options, {1, 2, 2, 1, 2}, 1, 1)), 0);
}

TEST(SpreadModel, GpipeWithEmptyMicroBatches) {
  // More micro-batches than sequences: some are empty on every rank, in every stage.
  for (const std::string family : {"mixtral", "gpt2_moe"}) {
    const TrainableConfig config = tiny_config(family);
    const Gradients expected = gradients_of(config, tiny_options(), {}, 1, 3);
    for (const parallel::LayoutOptions& layout : kLayouts) {
      SCOPED_TRACE(family + ", " + parallel::format_options(layout));
      expect_equal(gradients_of(config, tiny_options(), layout, 5, 3), expected);
    }
  }
}

}  // namespace
}  // namespace coterie::models
