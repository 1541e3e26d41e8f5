// SPDX-License-Identifier: Apache-2.0
// Every gate, in every order, with every kind of expert, at every layout of up to four ranks,
// against one process and a plain loop over the experts, fp64: outputs, all gradients, losses and
// counts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/run/nn/rank_cases.hpp"

namespace coterie::nn {
namespace {

using gates::GateKind;
using gates::GateOptions;
using gates::OrderKind;

std::vector<GateOptions> all_gates() {
  std::vector<GateOptions> all;
  const auto add = [&](GateKind kind, std::int32_t top_k, const auto& change) {
    GateOptions o = RankCase().gate;
    o.kind = kind;
    o.num_experts = 8;
    o.top_k = top_k;
    const bool within = kind == GateKind::kExpertChoice || kind == GateKind::kSoftMoe;
    o.balance = {within ? 0.0 : 0.3, 0.1};
    change(o);
    all.push_back(o);
  };
  const auto nothing = [](GateOptions&) {};
  add(GateKind::kTopkSoftmax, 2, nothing);
  add(GateKind::kTopkSoftmax, 3, [](GateOptions& o) { o.renormalise = true; });
  add(GateKind::kTopkSoftmax, 2,
      [](GateOptions& o) { o.softmax_over = gates::SoftmaxOver::kSelected; });
  add(GateKind::kGshard, 2, nothing);
  add(GateKind::kSwitch, 1, [](GateOptions& o) { o.jitter = 0.2; });
  add(GateKind::kSigmoid, 1, nothing);
  add(GateKind::kDeepseek, 3, [](GateOptions& o) {
    o.renormalise = o.selection_bias = true;
    o.num_groups = 4;
    o.num_groups_kept = 2;
    o.scaling = 1.5;
  });
  add(GateKind::kXmoe, 2, nothing);
  add(GateKind::kExpertChoice, 1, [](GateOptions& o) { o.capacity_factor = 1.5; });
  add(GateKind::kSoftMoe, 1, [](GateOptions& o) { o.slots_per_expert = 2; });
  return all;
}

std::vector<gates::OrderOptions> orders_of(const GateOptions& gate) {
  if (gate.kind == GateKind::kSoftMoe) {
    return {{OrderKind::kSlots, "order", {}}};
  }
  std::vector<gates::OrderOptions> orders = {{OrderKind::kIndex, "order", {}},
                                             {OrderKind::kEinsum, "order", {}}};
  if (gate.kind != GateKind::kExpertChoice) {
    orders.push_back({OrderKind::kIndex, "order", {0.8}});
    orders.push_back({OrderKind::kEinsum, "order", {0.8}});
  }
  return orders;
}

struct Layout {
  int num_devices;
  int num_shards;
  std::vector<std::int64_t> num_tokens;
};

/// Ragged, with empty ranks.
std::vector<Layout> all_layouts() {
  return {{1, 1, {13}},   {2, 1, {9, 4}},       {3, 1, {0, 7, 12}}, {4, 1, {6, 0, 11, 1}},
          {1, 2, {5, 8}}, {2, 2, {7, 3, 0, 9}}, {1, 3, {1, 6, 5}},  {1, 4, {2, 10, 0, 4}}};
}

/// Experts that nobody picked have gradients of exact zeros, not small ones, not none.
void expect_idle_experts_at_zero(const std::vector<Outcome>& ranks) {
  std::vector<std::int64_t> picks(8, 0);
  for (const Outcome& rank : ranks) {
    for (std::size_t e = 0; e < 8; ++e) {
      picks[e] += rank.statistics.routing.picks_per_expert.at(e);
    }
  }
  for (const Outcome& rank : ranks) {
    for (const auto& [name, gradient] : rank.gradients) {
      for (std::size_t i = 0; name.starts_with("experts.") && i < rank.expert_ids.size(); ++i) {
        if (picks[static_cast<std::size_t>(rank.expert_ids[i])] == 0) {
          EXPECT_TRUE(gradient[static_cast<std::int64_t>(i)].eq(0).all().item<bool>()) << name;
        }
      }
    }
  }
}

void check(const GateOptions& gate, const gates::OrderOptions& order, const Layout& layout) {
  for (const ExpertKind kind : {ExpertKind::kSwiGlu, ExpertKind::kGelu, ExpertKind::kGeluTanh}) {
    RankCase made;
    made.gate = gate;
    made.order = order;
    made.kind = kind;
    made.num_devices = layout.num_devices;
    made.num_shards = layout.num_shards;
    made.num_tokens = layout.num_tokens;
    SCOPED_TRACE(std::string(name_of(kind)) + ", " + std::to_string(layout.num_devices) +
                 " devices, " + std::to_string(layout.num_shards) + " shards");
    const auto ranks = run_ranks_of(made);
    expect_equal(made, ranks, run_reference_of(made), 1e-12);
    expect_idle_experts_at_zero(ranks);
    if (kind == ExpertKind::kSwiGlu) {
      const auto again = run_ranks_of(made);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        EXPECT_TRUE(same_bits(ranks[rank], again[rank])) << "rank " << rank;
      }
    }
  }
}

class GateMatrix : public testing::TestWithParam<GateOptions> {};

TEST_P(GateMatrix, EqualsTheReferenceAtEveryLayout) {
  for (const gates::OrderOptions& order : orders_of(GetParam())) {
    std::ostringstream text;
    text << order;
    SCOPED_TRACE(text.str());
    for (const Layout& layout : all_layouts()) {
      check(GetParam(), order, layout);
    }
  }
}

std::string test_name(const testing::TestParamInfo<GateOptions>& info) {
  return std::string(gates::name_of(info.param.kind)) + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Gates, GateMatrix, testing::ValuesIn(all_gates()), test_name);

}  // namespace
}  // namespace coterie::nn
