// SPDX-License-Identifier: Apache-2.0
// A layer that trains under a pruning policy: ranks against the loop over the experts in fp64, one
// process against ranks to the last bit, budgets and traffic, with and without copies of experts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "tests/run/nn/rank_cases.hpp"

namespace coterie::nn {
namespace {

using gates::GateKind;

placement::LayerPlacement placement_of(int num_devices, bool has_copies) {
  auto placement = placement::contiguous_placement(7, num_devices);
  if (has_copies) {
    placement.experts_of_device.front().push_back(6);
    placement.experts_of_device.back().insert(placement.experts_of_device.back().begin(), {0, 1});
  }
  return placement;
}

std::shared_ptr<const pruning::LayerPruner> pruner_of(const placement::LayerPlacement& placement,
                                                      pruning::Replacement replacement,
                                                      std::int32_t max_devices) {
  pruning::PruningOptions options;
  options.replacement = replacement;
  options.weights = pruning::Weights::kKeepSum;
  pruning::SimilarityTable table(7, 7, 0.25);
  return std::make_shared<pruning::LayerPruner>(placement, options, pruning::Budget{max_devices},
                                                &table);
}

RankCase pruned_case(int num_devices, int num_shards, bool has_copies,
                     pruning::Replacement replacement) {
  RankCase made;
  made.num_devices = num_devices;
  made.num_shards = num_shards;
  made.num_tokens.clear();
  for (int rank = 0; rank < made.num_ranks(); ++rank) {
    made.num_tokens.push_back(rank == 1 ? 0 : 20 + 31 * rank);
  }
  made.change_all = [=](MoELayerOptions& options) {
    options.placement = placement_of(num_devices, has_copies);
    options.pruner = pruner_of(*options.placement, replacement, 1);
  };
  return made;
}

TEST(PrunedTraining, EqualsTheReferenceAtEveryLayout) {
  for (const auto& [devices, shards] : {std::pair{2, 1}, {3, 1}, {4, 1}, {2, 2}}) {
    for (const bool has_copies : {false, true}) {
      for (const auto replacement :
           {pruning::Replacement::kRouterScore, pruning::Replacement::kSimilarity,
            pruning::Replacement::kNone}) {
        SCOPED_TRACE(std::to_string(devices) + " devices, " + std::to_string(shards) +
                     " shards, copies " + std::to_string(has_copies) + ", " +
                     std::string(name_of(replacement)));
        const RankCase made = pruned_case(devices, shards, has_copies, replacement);
        const auto ranks = run_ranks_of(made);
        expect_equal(made, ranks, run_reference_of(made), 1e-12);
        std::int64_t num_pruned = 0;
        for (const Outcome& rank : ranks) {
          num_pruned += rank.statistics.routing.num_pruned_tokens;
          EXPECT_LE(rank.statistics.num_replicas, rank.statistics.num_rows);
        }
        EXPECT_GT(num_pruned, 0);
      }
    }
  }
}

TEST(PrunedTraining, EveryGateAndOrderThatPicks) {
  for (const GateKind kind : {GateKind::kGshard, GateKind::kSwitch, GateKind::kSigmoid,
                              GateKind::kDeepseek, GateKind::kXmoe}) {
    for (const gates::OrderKind order : {gates::OrderKind::kIndex, gates::OrderKind::kEinsum}) {
      for (const double capacity : {0.0, 0.8}) {
        RankCase made = pruned_case(3, 1, false, pruning::Replacement::kRouterScore);
        made.gate.kind = kind;
        made.gate.top_k = kind == GateKind::kSwitch || kind == GateKind::kSigmoid ? 1 : 3;
        made.order = {order, "order", {capacity}};
        SCOPED_TRACE(std::string(gates::name_of(kind)) + ", " + gates::name_of(order));
        expect_equal(made, run_ranks_of(made), run_reference_of(made), 1e-12);
      }
    }
  }
}

TEST(PrunedTraining, OneProcessForAllDevicesHasTheBitsOfRanks) {
  for (const bool has_copies : {false, true}) {
    RankCase made = pruned_case(3, 1, has_copies, pruning::Replacement::kRouterScore);
    made.type = at::kFloat;
    made.gate.type = gates::RouterType::kFloat32;
    made.num_tokens = {70, 0, 133};
    const auto ranks = run_ranks_of(made);
    MoELayer layer(layer_options(made));
    layer->set_virtual_sources({0, 70, 70, 203});
    gates::TokenBatch all;
    std::vector<at::Tensor> xs;
    std::vector<at::Tensor> directions;
    std::vector<at::Tensor> is_real;
    std::vector<at::Tensor> y;
    for (int rank = 0; rank < 3; ++rank) {
      const auto batch = batch_of(made, rank);
      xs.push_back(batch.x.detach());
      directions.push_back(direction_of(made, rank));
      is_real.push_back(batch.is_real.defined() ? batch.is_real
                                                : at::ones({batch.x.size(0)}, at::kBool));
      y.push_back(ranks[static_cast<std::size_t>(rank)].y);
    }
    all.x = at::cat(xs).requires_grad_(true);
    all.is_real = at::cat(is_real);
    all.training = true;
    const Outcome alone = run_layer(layer, all, at::cat(directions));
    EXPECT_TRUE(at::equal(alone.y, at::cat(y)));
    EXPECT_GT(alone.statistics.routing.num_pruned_tokens, 20);
    for (const char* name : {"experts.gate_up_proj", "experts.down_proj"}) {
      for (const Outcome& rank : ranks) {
        const std::vector<std::int64_t> held(rank.expert_ids.begin(), rank.expert_ids.end());
        EXPECT_TRUE(at::equal(alone.gradients.at(name).index_select(0, at::tensor(held)),
                              rank.gradients.at(name)))
            << name;
      }
    }
  }
}

TEST(PrunedTraining, APolicyNeedsItsPlacement) {
  RankCase made;
  made.change_all = [](MoELayerOptions& options) {
    options.pruner =
        pruner_of(placement::contiguous_placement(7, 2), pruning::Replacement::kNone, 1);
  };
  EXPECT_THROW(MoELayer(layer_options(made)), Error);
}

}  // namespace
}  // namespace coterie::nn
