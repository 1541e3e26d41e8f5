// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "coterie/models/dense_mlp.hpp"
#include "coterie/models/row_collectives.hpp"
#include "coterie/models/trainable_attention.hpp"
#include "coterie/models/trainable_moe.hpp"
#include "coterie/models/trainable_norm.hpp"

namespace coterie::models {

/// A micro-batch as the layers of a rank see it. T tokens of the data coordinate, of which this
/// rank owns a block.
struct StageTokens {
  SequenceShape shape;            ///< all T tokens
  RowBlocks blocks;               ///< of T over the model group
  gates::TokenBatch batch;        ///< this rank's block; `x` is set by each layer
  RowBlocks whole_blocks;         ///< of T, each sequence on one rank
  gates::TokenBatch whole_batch;  ///< as `batch`, of this rank's whole sequences
  at::Tensor token_ids;           ///< int64 [block]
  at::Tensor positions;           ///< int64 [block]
  at::Tensor targets;             ///< int64 [block]
};

/// h [block, H] after a block, and what its MoE layer said.
struct BlockOutput {
  at::Tensor h;
  at::Tensor aux_loss;  ///< undefined if there is none
  std::optional<nn::MoEStatistics> moe;
  at::Tensor counts;  ///< on a GPU: what `moe` still lacks
};

/// Norm, attention, norm, experts (or GPT-2's feed-forward part), each with a residual. Rows are
/// sharded over the model group; they are gathered in front of attention and summed and scattered
/// behind it (Korthikanti et al., arXiv:2205.05198, section 4.2.2).
class TrainableBlock : public torch::nn::Module {
 public:
  TrainableBlock(ParameterStore& store, std::int64_t layer, const TrainableOptions& options);

  BlockOutput forward(const at::Tensor& h, const StageTokens& tokens);

  [[nodiscard]] std::int64_t layer() const { return layer_; }
  /// Null in layers that are no mixture.
  [[nodiscard]] nn::MoELayerImpl* moe() const {
    return moe_.is_empty() ? nullptr : moe_.ptr().get();
  }

 private:
  nn::MoEResult run_experts(const at::Tensor& x, const StageTokens& tokens);

  std::int64_t layer_;
  comm::Communicator& model_group_;
  bool needs_whole_sequences_ = false;
  std::shared_ptr<TrainableNorm> attention_norm_;
  std::shared_ptr<TrainableAttention> attention_;
  std::shared_ptr<TrainableNorm> mlp_norm_;
  nn::MoELayer moe_{nullptr};
  std::shared_ptr<DenseMlp> dense_;
};

}  // namespace coterie::models
