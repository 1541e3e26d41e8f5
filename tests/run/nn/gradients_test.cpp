// SPDX-License-Identifier: Apache-2.0
// Outputs and gradients of ranks against a loop over the experts in plain ATen with autograd, fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "tests/run/nn/rank_cases.hpp"

namespace coterie::nn {
namespace {

constexpr double kTolerance = 1e-12;

struct Sizes {
  int num_devices;
  int num_shards;
  std::vector<std::int64_t> num_tokens;
};

/// Ragged, with ranks that have no token, and with more than one block of tokens.
std::vector<Sizes> all_sizes() {
  return {{1, 1, {150}},        {1, 1, {0}},
          {2, 1, {70, 3}},      {2, 1, {0, 11}},
          {3, 1, {5, 140, 1}},  {4, 1, {9, 0, 66, 20}},
          {1, 2, {12, 70}},     {2, 2, {5, 130, 0, 7}},
          {1, 4, {3, 0, 65, 2}}};
}

void check(const RankCase& made) {
  expect_equal(made, run_ranks_of(made), run_reference_of(made), kTolerance);
}

RankCase sized(const Sizes& sizes) {
  RankCase made;
  made.num_devices = sizes.num_devices;
  made.num_shards = sizes.num_shards;
  made.num_tokens = sizes.num_tokens;
  return made;
}

std::string describe(const RankCase& made) {
  std::string text = std::to_string(made.num_devices) + " devices, " +
                     std::to_string(made.num_shards) + " shards, " + name_of(made.kind) + ", " +
                     gates::name_of(made.order.kind) + ", tokens";
  for (const std::int64_t count : made.num_tokens) {
    text += " " + std::to_string(count);
  }
  return text;
}

TEST(Gradients, EveryKindOfExpertOverEveryLayout) {
  for (const Sizes& sizes : all_sizes()) {
    for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGelu, ExpertKind::kGeluTanh}) {
      RankCase made = sized(sizes);
      made.kind = kind;
      SCOPED_TRACE(describe(made));
      check(made);
    }
  }
}

TEST(Gradients, BothFormsOfTheExchangeWithChunksAndParts) {
  for (const Sizes& sizes : all_sizes()) {
    for (const auto form :
         {exchange::ExchangeForm::kPerDevice, exchange::ExchangeForm::kPerExpert}) {
      RankCase made = sized(sizes);
      made.change = [&](MoELayerOptions& options) {
        options.exchange.form = form;
        options.exchange.max_expanded_rows = 37;
        options.forward_chunks = 2;
        options.backward_chunks = 3;
      };
      SCOPED_TRACE(describe(made));
      check(made);
    }
  }
}

TEST(Gradients, Recompute) {
  for (const Sizes& sizes : all_sizes()) {
    RankCase made = sized(sizes);
    made.change = [&](MoELayerOptions& options) {
      options.recompute = true;
      options.forward_chunks = 3;
      options.backward_chunks = 2;
    };
    SCOPED_TRACE(describe(made));
    check(made);
  }
}

TEST(Gradients, ModulesOfAUserAsExperts) {
  for (const Sizes& sizes : all_sizes()) {
    if (sizes.num_shards > 1) {
      continue;
    }
    for (const auto form :
         {exchange::ExchangeForm::kPerDevice, exchange::ExchangeForm::kPerExpert}) {
      for (const std::int64_t chunks : {1, 3}) {
        RankCase made = sized(sizes);
        made.kind = ExpertKind::kCustom;
        made.change = [&](MoELayerOptions& options) {
          options.exchange.form = form;
          options.forward_chunks = chunks;
        };
        SCOPED_TRACE(describe(made));
        check(made);
      }
    }
  }
}

TEST(Gradients, CopiesOfAnExpertGetTheGradientOfAll) {
  for (const Sizes& sizes : {Sizes{3, 1, {5, 140, 1}}, Sizes{2, 2, {5, 130, 0, 7}}}) {
    RankCase made = sized(sizes);
    made.change = [&](MoELayerOptions& options) {
      options.placement = placement::contiguous_placement(7, sizes.num_devices);
      options.placement->experts_of_device.front().push_back(6);
      options.placement->experts_of_device.back().insert(
          options.placement->experts_of_device.back().begin(), {0, 1});
    };
    SCOPED_TRACE(describe(made));
    check(made);
  }
}

TEST(Gradients, EveryOrder) {
  for (const Sizes& sizes : all_sizes()) {
    for (const gates::OrderKind kind : {gates::OrderKind::kIndex, gates::OrderKind::kEinsum}) {
      RankCase made = sized(sizes);
      made.order.kind = kind;
      made.order.capacity.factor = 0.8;  // drops some: ids of -1
      SCOPED_TRACE(describe(made));
      check(made);
    }
  }
}

}  // namespace
}  // namespace coterie::nn
