// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/gates/gates.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

/// How a decoder is trained; what it is says TrainableConfig.
struct TrainableOptions {
  at::ScalarType type = at::kFloat;  ///< of parameters and activations: fp64, fp32 or bf16
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;  ///< of new parameters and of noise

  /// The gate of every MoE layer: kind, balance losses, noise. Sizes, name, stream and, for top-k
  /// softmax, renormalisation come from the model.
  gates::GateOptions gate;
  gates::OrderOptions order;
  /// Where experts live, one an MoE layer, devices = ranks of the expert group; empty: contiguous.
  /// Without expert parallelism (expert = expert_shard = 1) any number of devices: this process
  /// computes what they would.
  std::vector<placement::LayerPlacement> placements;
  /// Limits each token to few devices of `placements`, which must then be given. The layers of the
  /// policy are the model's MoE layers.
  std::optional<pruning::Policy> pruning;
  std::optional<pruning::ModelSimilarity> similarity;  ///< for a policy that replaces by it

  int forward_chunks = 1;
  int backward_chunks = 1;
  /// Keep only each block's input and compute the block again in the backward pass.
  bool recompute = false;
  std::int64_t loss_chunk = 1024;  ///< rows whose logits are there at a time
  kernels::Execution execution;    ///< threads and back end of our kernels; the pool must outlive
  /// Plain products and softmax, all logits at once, the MoE layer's plain loops (which need an
  /// expert group of one): slow, obviously right.
  bool reference = false;
  /// Experts by torch's grouped products instead of the library's kernels: the baseline on a GPU.
  bool grouped_mm = false;
};

}  // namespace coterie::models
