// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coterie/run/nn/nn.hpp"

namespace coterie::nn {

/// One layer over several ranks, small and ragged.
struct RankCase {
  int num_devices = 1;                         ///< EP
  int num_shards = 1;                          ///< ESP
  std::vector<std::int64_t> num_tokens = {9};  ///< [devices * shards] of each rank
  ExpertKind kind = ExpertKind::kSwiGlu;
  at::ScalarType type = at::kDouble;
  gates::OrderOptions order;
  gates::GateOptions gate;
  std::function<void(MoELayerOptions&)> change;      ///< of a rank's options
  std::function<void(MoELayerOptions&)> change_all;  ///< of everybody's, the reference's too
  std::int64_t num_backwards = 1;                    ///< through the same graph

  RankCase();
  [[nodiscard]] int num_ranks() const { return num_devices * num_shards; }
};

/// What came out, on one rank or of the reference.
struct Outcome {
  at::Tensor y;
  at::Tensor grad_x;
  std::map<std::string, at::Tensor> gradients;  ///< by parameter name
  double aux_loss = 0.0;
  MoEStatistics statistics;
  std::vector<std::int32_t> expert_ids;
};

/// Options of the layer without groups.
MoELayerOptions layer_options(const RankCase& made);

/// Tokens of a rank and dL/dy of its own loss, the same whenever asked.
gates::TokenBatch batch_of(const RankCase& made, int rank);
at::Tensor direction_of(const RankCase& made, int rank);

/// Forward and backward of one batch: the loss is the sum of y times `direction`, plus aux_loss.
Outcome run_layer(MoELayer& layer, const gates::TokenBatch& batch, const at::Tensor& direction,
                  std::int64_t num_backwards = 1);

/// The part of one rank of the world [devices * shards].
Outcome run_rank_of(const RankCase& made, comm::Communicator& world);

/// Each rank in a thread, with groups of the in-process fake.
std::vector<Outcome> run_ranks_of(const RankCase& made);

/// The same ranks one after the other in one process by the reference path; expert gradients are
/// sums over the ranks. Outcome [ranks], gradients in each are totals.
std::vector<Outcome> run_reference_of(const RankCase& made);

/// Expects ranks to give what the reference gives, within a tolerance: y and dL/dx of each rank,
/// the sum of the gate's gradients, each rank's part of the experts'.
void expect_equal(const RankCase& made, const std::vector<Outcome>& ranks,
                  const std::vector<Outcome>& reference, double tolerance);

/// True if both outcomes are equal to the last bit.
bool same_bits(const Outcome& a, const Outcome& b);

}  // namespace coterie::nn
