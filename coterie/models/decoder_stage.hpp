// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "coterie/models/stage_tokens.hpp"
#include "coterie/models/trainable_block.hpp"

namespace coterie::models {

/// Results of a stage's layers for one micro-batch.
struct StageOutput {
  at::Tensor h;                        // [block, H]
  std::vector<at::Tensor> aux_losses;  // of the layers that have one
};

/// The layers that one pipeline stage holds, under the parameter names of Hugging Face; the first
/// stage has the embedding, the last one the final norm and the head.
class DecoderStage : public torch::nn::Module {
 public:
  DecoderStage(ParameterStore& store, const TrainableOptions& options);

  [[nodiscard]] bool is_first() const { return is_first_; }
  [[nodiscard]] bool is_last() const { return is_last_; }
  [[nodiscard]] const std::vector<std::shared_ptr<TrainableBlock>>& blocks() const {
    return blocks_;
  }

  /// First stage: [block, H] of the tokens.
  at::Tensor embed(const StageTokens& tokens);
  /// All layers. What MoE layers say is added to `statistics` (one an MoE layer of this stage).
  StageOutput run_layers(const at::Tensor& h, const StageTokens& tokens,
                         std::vector<LayerStatistics>& statistics);
  /// Last stage: sum over this rank's targets of -log p.
  at::Tensor loss_sum(const at::Tensor& h, const StageTokens& tokens);

 private:
  BlockOutput run_block(TrainableBlock& block, const at::Tensor& h, const StageTokens& tokens,
                        LayerStatistics* statistics);

  const TrainableConfig& config_;
  const TrainableOptions& options_;
  bool is_first_;
  bool is_last_;
  std::shared_ptr<WeightHolder> embedding_;  // [V, H]; with a tied head on the last stage too
  std::shared_ptr<WeightHolder> positions_;  // [max_positions, H], GPT-2
  std::vector<std::shared_ptr<TrainableBlock>> blocks_;
  std::shared_ptr<TrainableNorm> norm_;
  std::shared_ptr<WeightHolder> head_;  // [V, H]; null if tied
};

/// Adds counts of one forward.
void add_statistics(LayerStatistics& sum, const nn::MoEStatistics& moe);

}  // namespace coterie::models
