// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_block.hpp"

#include "coterie/models/whole_sequences.hpp"

namespace coterie::models {

TrainableBlock::TrainableBlock(ParameterStore& store, std::int64_t layer,
                               const TrainableOptions& options)
    : layer_(layer), model_group_(store.groups.model()) {
  const std::string prefix = block_prefix(store.config, layer);
  const bool is_gpt2 = store.config.is_gpt2();
  const auto norm = [&](const char* name) {
    return register_module(name, std::make_shared<TrainableNorm>(store, prefix + name + "."));
  };
  attention_norm_ = norm(is_gpt2 ? "ln_1" : "input_layernorm");
  attention_ =
      is_gpt2
          ? register_module("attn", make_gpt2_attention(store, prefix + "attn.", options.reference))
          : register_module("self_attn",
                            make_rotary_attention(store, prefix + "self_attn.", options.reference));
  mlp_norm_ = norm(is_gpt2 ? "ln_2" : "post_attention_layernorm");
  if (store.config.is_moe_layer(layer)) {
    moe_ = register_module("mlp", make_trainable_moe(store, layer, options));
    needs_whole_sequences_ = needs_whole_sequences(moe_->gate(), options.order);
  } else {
    dense_ = register_module("mlp", std::make_shared<DenseMlp>(store, prefix + "mlp."));
  }
}

nn::MoEResult TrainableBlock::run_experts(const at::Tensor& x, const StageTokens& tokens) {
  const bool moves = needs_whole_sequences_ && model_group_.size() > 1;
  gates::TokenBatch batch = moves ? tokens.whole_batch : tokens.batch;
  batch.x = moves ? move_rows(x, tokens.blocks, tokens.whole_blocks, model_group_) : x;
  nn::MoEResult result = moe_->forward(batch);
  if (moves) {
    result.y = move_rows(result.y, tokens.whole_blocks, tokens.blocks, model_group_);
  }
  return result;
}

BlockOutput TrainableBlock::forward(const at::Tensor& h, const StageTokens& tokens) {
  const auto gathered = [&](const at::Tensor& x) {
    return gather_rows(x, tokens.blocks, model_group_);
  };
  const auto scattered = [&](const at::Tensor& x, const at::Tensor& bias) {
    const at::Tensor rows = sum_scatter_rows(x, tokens.blocks, model_group_);
    return bias.defined() ? rows + bias : rows;
  };
  const at::Tensor mixed =
      scattered(attention_->forward(gathered(attention_norm_->forward(h)), tokens.shape),
                attention_->output_bias());
  const at::Tensor middle = h + mixed;
  const at::Tensor x = mlp_norm_->forward(middle);
  BlockOutput output;
  if (dense_) {
    output.h = middle + scattered(dense_->forward(gathered(x)), dense_->output_bias());
    return output;
  }
  const nn::MoEResult result = run_experts(x, tokens);
  output.h = middle + result.y;
  output.aux_loss = result.aux_loss;
  output.moe = result.statistics;
  output.counts = result.counts;
  return output;
}

}  // namespace coterie::models
