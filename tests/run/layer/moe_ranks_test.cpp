// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "tests/run/layer/toy_layer.hpp"

namespace coterie::layer {
namespace {

using comm::Purpose;
using exchange::ExchangeForm;
using kernels::DType;

/// Which rank owns which rows: [num_ranks + 1] bounds, uneven, some ranks without any.
std::vector<std::int64_t> random_bounds(Random& random, int num_ranks, std::int64_t num_tokens) {
  std::vector<std::int64_t> bounds = {0, num_tokens};
  while (std::ssize(bounds) < num_ranks + 1) {
    bounds.push_back(
        static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(num_tokens) + 1)));
  }
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

placement::LayerPlacement random_placement(Random& random, std::int32_t num_experts,
                                           std::int32_t num_devices, bool with_copies) {
  placement::LayerPlacement placement;
  placement.num_experts = num_experts;
  placement.experts_of_device.resize(static_cast<std::size_t>(num_devices));
  std::vector<std::int32_t> experts;
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    experts.push_back(expert);
  }
  random.shuffle(std::span(experts));
  const auto devices = static_cast<std::uint64_t>(num_devices);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    placement.experts_of_device[i < devices ? i : random.below(devices)].push_back(experts[i]);
  }
  for (auto& device : placement.experts_of_device) {
    for (int copies = with_copies ? 2 : 0; copies > 0; --copies) {
      const auto expert =
          static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_experts)));
      if (std::find(device.begin(), device.end(), expert) == device.end()) {
        device.push_back(expert);
      }
    }
    std::sort(device.begin(), device.end());
  }
  return placement;
}

/// Runs the layer on `num_ranks` ranks, each with its own experts' weights and rows of x only, and
/// checks prediction against the traffic counter. The rows of all ranks, joined.
std::vector<std::byte> run_on_ranks(const ToyLayer& toy, const MoeOptions& options,
                                    const placement::LayerPlacement& placement, const Values& x,
                                    const std::vector<std::int64_t>& bounds) {
  const int num_ranks = placement.num_devices();
  std::vector<std::vector<std::byte>> of_rank(static_cast<std::size_t>(num_ranks));
  std::vector<RoutingRecord> records(static_cast<std::size_t>(num_ranks));
  std::vector<comm::Traffic> traffic(static_cast<std::size_t>(num_ranks));
  comm::run_ranks(num_ranks, [&](comm::Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    MoeLayer layer(options, toy.weights(placement.experts_of_device[rank]), placement,
                   &communicator);
    of_rank[rank] =
        forward(layer, x.view(bounds[rank], bounds[rank + 1] - bounds[rank]), &records[rank]);
    traffic[rank] = communicator.traffic();
    EXPECT_EQ(traffic[rank].num_collectives, 4U);
  });
  std::vector<std::byte> all;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    all.insert(all.end(), of_rank[rank].begin(), of_rank[rank].end());
    std::uint64_t metadata = 0;
    std::uint64_t dispatch = 0;
    std::uint64_t combine = 0;
    std::uint64_t rows = 0;
    for (std::size_t other = 0; other < of_rank.size(); ++other) {
      rows += records[other].predicted.rows_to[rank];
      if (other != rank) {
        metadata += records[rank].predicted.metadata_to[other];
        dispatch += records[rank].predicted.dispatch_to[other];
        combine += records[other].predicted.combine_from[rank];
      }
    }
    EXPECT_EQ(traffic[rank].sent_for(Purpose::kMetadata), metadata);
    EXPECT_EQ(traffic[rank].sent_for(Purpose::kDispatch), dispatch);
    EXPECT_EQ(traffic[rank].sent_for(Purpose::kCombine), combine);
    EXPECT_EQ(records[rank].rows_received,
              std::vector<std::int64_t>{static_cast<std::int64_t>(rows)});
  }
  return all;
}

TEST(MoeRanks, EqualOneProcessWithTheSamePlacementToTheLastBit) {
  for (std::uint64_t seed = 0; seed < 48; ++seed) {
    Random random(seed, 41);
    const auto num_ranks = static_cast<std::int32_t>(1 + seed % 8);
    const auto num_experts = num_ranks + static_cast<std::int32_t>(random.below(9));
    const auto top_k = static_cast<std::int32_t>(
        1 + random.below(static_cast<std::uint64_t>(std::min(num_experts, 8))));
    const DType type = random.below(3) == 0 ? DType::kBfloat16 : DType::kFloat32;
    ToyLayer toy(seed, num_experts, top_k, type);
    toy.options.norm_topk_prob = random.below(2) == 0;
    toy.options.exchange.form =
        random.below(2) == 0 ? ExchangeForm::kPerDevice : ExchangeForm::kPerExpert;
    toy.options.exchange.partial_type = random.below(3) == 0 ? DType::kBfloat16 : DType::kFloat32;
    const auto placement = random_placement(random, num_experts, num_ranks, random.below(3) == 0);
    if (seed % 3 == 0) {
      toy.options.pruner = std::make_shared<pruning::LayerPruner>(
          placement, pruning::PruningOptions{}, pruning::Budget{2});
    }
    const auto num_tokens = static_cast<std::int64_t>(random.below(40));
    const Values x(random, num_tokens, toy.options.hidden, 1.0, type);
    SCOPED_TRACE(join_message("seed ", seed, ": ", num_ranks, " ranks, ", num_experts,
                              " experts, top-", top_k, ", ", num_tokens, " tokens"));
    MoeLayer one(toy.options, toy.weights(), placement);
    const auto expected = forward(one, x.view());
    ASSERT_EQ(
        run_on_ranks(toy, toy.options, placement, x, random_bounds(random, num_ranks, num_tokens)),
        expected);
  }
}

TEST(MoeRanks, AllTokensOnOneRankAndOneExpert) {
  // A router that gives every token expert 5 first: one busy device, three idle ones.
  ToyLayer toy(1, 8, 1);
  const auto placement = placement::contiguous_placement(8, 4);
  Random random(2);
  Values x(random, 7, toy.options.hidden, 1.0);
  for (std::int64_t t = 0; t < 7; ++t) {
    x.at(t, 0) = 5.0F;
  }
  for (std::int32_t expert = 0; expert < 8; ++expert) {
    toy.router.at(expert, 0) = expert == 5 ? 100.0F : 0.0F;
  }
  MoeLayer one(toy.options, toy.weights(), placement);
  RoutingRecord record;
  const auto expected = forward(one, x.view(), &record);
  ASSERT_TRUE(std::all_of(record.expert_ids.begin(), record.expert_ids.end(),
                          [](std::int32_t id) { return id == 5; }));
  EXPECT_EQ(run_on_ranks(toy, toy.options, placement, x, {0, 7, 7, 7, 7}), expected);
  EXPECT_EQ(run_on_ranks(toy, toy.options, placement, x, {0, 0, 0, 0, 7}), expected);
}

TEST(MoeRanks, ANewPlacementEachStepChangesNoResult) {
  // Devices change, so the order of sums does; the results stay within rounding.
  const ToyLayer toy(11, 12, 4);
  Random random(6);
  const Values x(random, 16, toy.options.hidden, 1.0);
  MoeLayer plain(toy.options, toy.weights());
  const auto expected = floats_of(forward(plain, x.view()));
  for (int step = 0; step < 20; ++step) {
    const auto placement = random_placement(random, 12, 4, step % 2 == 1);
    const auto y =
        floats_of(run_on_ranks(toy, toy.options, placement, x, random_bounds(random, 4, 16)));
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], 1e-5);
    }
  }
}

TEST(MoeRanks, EveryTokenCountFits) {
  const ToyLayer toy(12, 6, 2);
  const auto placement = placement::contiguous_placement(6, 4);
  for (std::int64_t num_tokens = 1; num_tokens <= 17; ++num_tokens) {
    Random random(static_cast<std::uint64_t>(num_tokens));
    const Values x(random, num_tokens, toy.options.hidden, 1.0);
    MoeLayer one(toy.options, toy.weights(), placement);
    ASSERT_EQ(run_on_ranks(
                  toy, toy.options, placement, x,
                  {0, num_tokens / 4, num_tokens / 2, num_tokens / 2 + num_tokens / 4, num_tokens}),
              forward(one, x.view()));
  }
}

TEST(MoeRanks, FormsAgreeAndPerDeviceSendsLess) {
  ToyLayer toy(13, 8, 6);
  const auto placement = placement::contiguous_placement(8, 2);
  Random random(7);
  const Values x(random, 30, toy.options.hidden, 1.0);
  const std::vector<std::int64_t> bounds = {0, 11, 30};
  MoeOptions classical = toy.options;
  classical.exchange.form = ExchangeForm::kPerExpert;
  EXPECT_EQ(run_on_ranks(toy, toy.options, placement, x, bounds),
            run_on_ranks(toy, classical, placement, x, bounds));
  RoutingRecord once;
  RoutingRecord per_expert;
  MoeLayer a(toy.options, toy.weights(), placement);
  MoeLayer b(classical, toy.weights(), placement);
  EXPECT_EQ(forward(a, x.view(), &once), forward(b, x.view(), &per_expert));
  EXPECT_EQ(per_expert.predicted.rows_to[0] + per_expert.predicted.rows_to[1], 180U);
  EXPECT_LE(once.predicted.rows_to[0] + once.predicted.rows_to[1], 60U);
}

TEST(MoeRanks, ABadTokenLeavesTheOtherRanksTheirResults) {
  const ToyLayer toy(14, 6, 2);
  const auto placement = placement::contiguous_placement(6, 3);
  Random random(8);
  Values x(random, 9, toy.options.hidden, 1.0);
  MoeLayer one(toy.options, toy.weights(), placement);
  const auto expected = floats_of(forward(one, x.view()));
  x.at(4, 0) = std::numeric_limits<float>::quiet_NaN();
  comm::run_ranks(3, [&](comm::Communicator& communicator) {
    const auto rank = communicator.rank();
    MoeLayer layer(toy.options,
                   toy.weights(placement.experts_of_device[static_cast<std::size_t>(rank)]),
                   placement, &communicator);
    std::vector<float> y(3 * 24);
    const kernels::MatrixView out{y.data(), 3, 24, 24, DType::kFloat32};
    if (rank == 1) {
      EXPECT_THROW(layer.forward(x.view(3, 3), out), Error);
    } else {
      layer.forward(x.view(3 * rank, 3), out);
    }
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t token = static_cast<std::size_t>(3 * rank) + i / 24;
      EXPECT_EQ(y[i], token == 4 ? 0.0F : expected[static_cast<std::size_t>(rank) * 72 + i]);
    }
  });
}

TEST(MoeRanks, WhatNeedsOneProcessOrAPlacementIsRefused) {
  const ToyLayer toy(15, 6, 2);
  comm::SingleCommunicator single;
  EXPECT_THROW(MoeLayer(toy.options, toy.weights(), {}, &single), Error);
  EXPECT_THROW(MoeLayer(toy.options, toy.weights(), placement::contiguous_placement(6, 2), &single),
               Error);
  MoeOptions loops = toy.options;
  loops.plain_loops = true;
  try {
    MoeLayer(loops, toy.weights(), placement::contiguous_placement(6, 1), &single);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace coterie::layer
