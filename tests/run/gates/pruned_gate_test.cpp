// SPDX-License-Identifier: Apache-2.0
// Pruning behind every gate that picks: the policy's bits, its gradients, and what it leaves alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "gate_case.hpp"
#include "tests/folders.hpp"

namespace coterie::gates {
namespace {

using pruning::Replacement;
using pruning::Weights;

std::shared_ptr<const pruning::LayerPruner> pruner_of(const placement::LayerPlacement& placement,
                                                      Replacement replacement, Weights weights,
                                                      std::int32_t max_devices) {
  pruning::PruningOptions options;
  options.replacement = replacement;
  options.weights = weights;
  const auto num_experts = static_cast<std::size_t>(placement.num_experts);
  pruning::SimilarityTable table(num_experts, num_experts, 0.0);
  for (std::size_t i = 0; i < num_experts; ++i) {
    for (std::size_t j = 0; j < num_experts; ++j) {
      table(i, j) = i == j ? 1.0 : 1.0 / static_cast<double>(1 + i + j);
    }
  }
  return std::make_shared<pruning::LayerPruner>(placement, options, pruning::Budget{max_devices},
                                                &table);
}

bool picks(const GateOptions& o) {
  return o.kind != GateKind::kExpertChoice && o.kind != GateKind::kSoftMoe;
}

TEST(PrunedGate, HasTheBitsOfThePlansGoldenTrace) {
  const Json golden = read_json_file(tests::source_dir() / "tests/golden/pruning.json");
  placement::LayerPlacement placement;
  placement.num_experts = 16;
  placement.experts_of_device =
      golden.at("experts_of_device").get<std::vector<std::vector<std::int32_t>>>();
  const auto scores = golden.at("scores").get<std::vector<std::vector<float>>>();
  const auto ids = golden.at("ids").get<std::vector<std::vector<std::int32_t>>>();
  pruning::SimilarityProfile profile(16);
  std::vector<at::Tensor> score_rows;
  std::vector<at::Tensor> id_rows;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    profile.add(scores[t]);
    score_rows.push_back(at::tensor(scores[t]));
    id_rows.push_back(at::tensor(ids[t], at::kInt));
  }
  const auto table = profile.table(pruning::Measure::kCentredCosine);
  const at::Tensor all = at::stack(score_rows).requires_grad_(true);
  ASSERT_EQ(golden.at("policies").size(), 12U);
  for (const Json& policy : golden.at("policies")) {
    const auto options = pruning::pruning_options_from_json(policy.at("options"), "golden");
    const pruning::LayerPruner pruner(placement, options, options.budget, &table);
    Routing routing;
    routing.ids = at::stack(id_rows);
    routing.weights = all.gather(1, routing.ids.to(at::kLong));
    routing.statistics.num_tokens = routing.ids.size(0);
    prune_routing(pruner, {all, all}, {"golden", {}}, routing);
    const auto wanted_ids = policy.at("ids").get<std::vector<std::vector<std::int32_t>>>();
    const auto wanted = policy.at("weights").get<std::vector<std::vector<float>>>();
    for (std::size_t t = 0; t < scores.size(); ++t) {
      const auto row = static_cast<std::int64_t>(t);
      EXPECT_TRUE(at::equal(routing.ids[row], at::tensor(wanted_ids[t], at::kInt))) << t;
      EXPECT_TRUE(at::equal(routing.weights[row], at::tensor(wanted[t]))) << t;
    }
  }
}

TEST(PrunedGate, GradientsEqualFiniteDifferencesForEveryGateAndRule) {
  for (const GateOptions& o : every_gate()) {
    if (!picks(o)) {
      continue;
    }
    for (const Replacement replacement :
         {Replacement::kRouterScore, Replacement::kSimilarity, Replacement::kNone}) {
      for (const Weights weights : {Weights::kOwnScore, Weights::kKeepSum}) {
        SCOPED_TRACE(describe(o) + ", " + std::string(name_of(replacement)) + ", " +
                     std::string(name_of(weights)));
        const auto gate = random_gate(o, 21);
        const auto placement = placement::contiguous_placement(o.num_experts, 4);
        gate->set_pruner(pruner_of(placement, replacement, weights, 1));
        TokenBatch batch = random_batch({5, 0, 4}, o.hidden, 22);
        batch.training = true;
        batch.x.requires_grad_(true);
        std::vector<at::Tensor> inputs = gate->parameters();
        inputs.push_back(batch.x);
        EXPECT_LT(gradient_error(inputs,
                                 [&] {
                                   const Routing routing = gate->forward(batch);
                                   return dot_with_fixed(routing.weights, 2) + routing.aux_loss;
                                 }),
                  1e-8);
        const Routing routing = gate->forward(batch);
        EXPECT_EQ(routing.statistics.num_pruned_tokens > 0, o.top_k > 1);
      }
    }
  }
}

TEST(PrunedGate, TokensKeepToTheirBudgetAndLossesToTheRouter) {
  for (GateOptions o : every_gate()) {
    if (!picks(o)) {
      continue;
    }
    SCOPED_TRACE(describe(o));
    o.type = RouterType::kFloat32;
    const TokenBatch batch = [&] {
      TokenBatch made = random_batch({40, 30}, o.hidden, 5);
      made.x = made.x.to(at::kFloat);
      return made;
    }();
    const auto plain = random_gate(o, 3)->forward(batch);
    const auto placement = placement::contiguous_placement(o.num_experts, 4);
    const auto home = placement.device_of_expert();
    const auto devices = [&](const at::Tensor& row) {
      std::set<std::int32_t> found;
      for (std::int64_t i = 0; i < row.size(0); ++i) {
        const auto id = row[i].item<std::int32_t>();
        if (id >= 0) {
          found.insert(home[static_cast<std::size_t>(id)]);
        }
      }
      return found.size();
    };
    for (const std::int32_t limit : {1, 2, 4}) {
      const auto gate = random_gate(o, 3);
      gate->set_pruner(pruner_of(placement, Replacement::kRouterScore, Weights::kOwnScore, limit));
      const Routing routing = gate->forward(batch);
      EXPECT_TRUE(bit_equal(routing.aux_loss, plain.aux_loss));
      EXPECT_TRUE(at::equal(routing.unpruned_ids, plain.ids));
      EXPECT_EQ(routing.statistics.router_picks(), plain.statistics.picks_per_expert);
      std::int64_t num_changed = 0;
      for (std::int64_t t = 0; t < batch.num_tokens(); ++t) {
        const std::size_t before = devices(plain.ids[t]);
        ASSERT_EQ(devices(routing.ids[t]), std::min<std::size_t>(before, limit)) << "token " << t;
        if (before <= static_cast<std::size_t>(limit)) {
          EXPECT_TRUE(at::equal(routing.ids[t], plain.ids[t]));
          EXPECT_TRUE(bit_equal(routing.weights[t], plain.weights[t]));
        } else {
          ++num_changed;
        }
      }
      EXPECT_EQ(routing.statistics.num_pruned_tokens, num_changed);
    }
  }
}

TEST(PrunedGate, NormalisedWeightsSumToOneAndScaledOnesToTheScale) {
  GateOptions o = small_gate(GateKind::kDeepseek, 8, 3);
  o.renormalise = true;
  o.scaling = 2.5;
  o.num_groups = 4;
  o.num_groups_kept = 3;
  o.type = RouterType::kFloat32;
  const auto gate = random_gate(o, 9);
  gate->set_pruner(
      pruner_of(placement::contiguous_placement(8, 4), Replacement::kNone, Weights::kKeepSum, 1));
  TokenBatch batch = random_batch({50}, o.hidden, 5);
  batch.x = batch.x.to(at::kFloat);
  const Routing routing = gate->forward(batch);
  EXPECT_GT(routing.statistics.num_pruned_tokens, 10);
  EXPECT_LT((routing.weights.sum(1) - 2.5).abs().max().item<double>(), 1e-5);
}

TEST(PrunedGate, RefusesGatesWithoutPicksAndPoliciesOfOtherSizes) {
  const auto pruner =
      pruner_of(placement::contiguous_placement(8, 4), Replacement::kNone, Weights::kOwnScore, 1);
  for (const GateOptions& o : every_gate()) {
    if (!picks(o)) {
      try {
        random_gate(o, 1)->set_pruner(pruner);
        ADD_FAILURE() << describe(o);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_NE(std::string(error.what()).find("layer 5"), std::string::npos);
      }
    }
  }
  EXPECT_THROW(random_gate(small_gate(GateKind::kTopkSoftmax, 6, 2), 1)->set_pruner(pruner), Error);
}

}  // namespace
}  // namespace coterie::gates
