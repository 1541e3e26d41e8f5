// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coterie/models/parameter_store.hpp"
#include "coterie/models/trainable_options.hpp"
#include "coterie/run/gates/gates.hpp"
#include "coterie/run/nn/nn.hpp"

namespace coterie::models {

/// Makes the MoE layer of block `layer` and files its parameters: the gate whole, experts by the
/// expert and expert-shard groups. kBadInput naming layer and values where experts or their width
/// do not divide.
nn::MoELayer make_trainable_moe(ParameterStore& store, std::int64_t layer,
                                const TrainableOptions& options);

/// Which experts and which part of their width a rank holds.
struct ExpertPart {
  std::vector<std::int32_t> experts;  ///< ascending global ids, one a slot
  parallel::Share width;              ///< of the intermediate size
};
ExpertPart expert_part(const ParameterStore& store, std::int64_t layer,
                       const TrainableOptions& options);

/// The gate options of a layer: those asked for, with the model's sizes.
gates::GateOptions layer_gate_options(const ParameterStore& store, std::int64_t layer,
                                      const TrainableOptions& options);

/// Files parameters that exist: the gate's, whole, and the experts' stacked tensors, a piece an
/// expert and matrix.
void file_gate(ParameterStore& store, std::int64_t layer, const torch::nn::Module& gate);
void file_experts(ParameterStore& store, std::int64_t layer, const ExpertPart& part,
                  const torch::nn::Module& experts);

/// "model.layers.3." or "transformer.h.3.".
std::string block_prefix(const TrainableConfig& config, std::int64_t layer);

}  // namespace coterie::models
