// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/plan/cost/cost.hpp"

namespace coterie::cost {

/// A made cluster: 4 nodes of 8 devices, two engines.
inline ClusterProfile sample_profile() {
  ClusterProfile profile;
  profile.name = "sample";
  profile.source = "made for tests";
  profile.num_nodes = 4;
  profile.devices_per_node = 8;
  profile.products = CostModel(2e-5, 1 / 300e12);
  profile.attention = CostModel(4e-5, 1 / 250e12);
  Engine nccl;
  nccl.name = "nccl";
  nccl.exchange = CostModel(3e-5, 1 / 40e9);
  nccl.local_exchange = CostModel(1.5e-5, 1 / 180e9);
  nccl.all_gather = CostModel(
      {{0, 1.2e-5, 1 / 150e9}, {1.5e6, 1.2e-5 + 1.5e6 / 150e9 - 1.5e6 / 230e9, 1 / 230e9}},
      {12, 1e3, 1e8, 0.9991, 0.031}, "sample");
  nccl.reduce_scatter = CostModel(1.4e-5, 1 / 200e9);
  nccl.all_reduce = CostModel(6e-5, 1 / 25e9);
  nccl.contention = uniform_contention(0.1, 0.2);
  Engine copy = nccl;
  copy.name = "copy_engine";
  copy.contention = uniform_contention(0.1, 0.03);
  profile.engines = {nccl, copy};
  profile.checks = {{"layer forward, 4096 tokens", check_prediction(1.05e-3, 1.0e-3)}};
  return profile;
}

}  // namespace coterie::cost
