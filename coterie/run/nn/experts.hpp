// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "coterie/run/nn/moe_layer_options.hpp"

namespace coterie::nn {

/// The experts that one process holds, in the parameters of Hugging Face's fused modules. n
/// experts, s = I / shards:
///
///   kSwiGlu          gate_up_proj [n, 2s, H] (gate rows, then up rows), down_proj [n, H, s]
///   kGelu, kGeluTanh up_proj [n, s, H], down_proj [n, H, s]; with bias up_bias [n, s], down_bias
///                    [n, H]
///   kCustom          one child module an expert, named by its global id
///
/// New weights are drawn for whole experts by global id and then cut, so they do not depend on the
/// layout. The first shard adds down_bias; its gradient is whole on every shard.
class ExpertsImpl final : public torch::nn::Module {
 public:
  /// `experts` are global ids, ascending. `options` must have been checked.
  ExpertsImpl(const MoELayerOptions& options, std::vector<std::int32_t> experts);

  [[nodiscard]] ExpertKind kind() const { return kind_; }
  [[nodiscard]] const std::vector<std::int32_t>& expert_ids() const { return expert_ids_; }
  [[nodiscard]] std::int64_t num_shards() const { return num_shards_; }
  [[nodiscard]] std::int64_t shard() const { return shard_; }
  /// Place of an expert among those held; -1: not held.
  [[nodiscard]] std::int64_t place_of(std::int32_t expert) const;

  /// What all outputs are of the rows given: the expert at `place` on rows [n, H], by plain ATen.
  [[nodiscard]] at::Tensor apply(std::int64_t place, const at::Tensor& rows);

  at::Tensor up;         ///< gate_up_proj or up_proj; undefined for kCustom
  at::Tensor down;       ///< down_proj
  at::Tensor up_bias;    ///< undefined: none
  at::Tensor down_bias;  ///< undefined: none

 private:
  at::Tensor draw(const MoELayerOptions& options, const std::string& name, std::int64_t rows,
                  std::int64_t columns) const;
  void make_weights(const MoELayerOptions& options);

  ExpertKind kind_;
  std::vector<std::int32_t> expert_ids_;
  std::int64_t num_shards_ = 1;
  std::int64_t shard_ = 0;
  std::vector<torch::nn::AnyModule> modules_;  // kCustom
};
TORCH_MODULE(Experts);

}  // namespace coterie::nn
