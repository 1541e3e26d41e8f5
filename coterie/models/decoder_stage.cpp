// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/decoder_stage.hpp"

#include <optional>

#include "coterie/base/error.hpp"
#include "coterie/models/chunked_loss.hpp"
#include "coterie/models/recompute.hpp"

namespace coterie::models {

DecoderStage::DecoderStage(ParameterStore& store, const TrainableOptions& options)
    : config_(store.config), options_(options) {
  const ModelConfig& model = store.config.model;
  const bool is_gpt2 = store.config.is_gpt2();
  const int stage = store.groups.coordinates().pipeline;
  is_first_ = stage == 0;
  is_last_ = stage == store.sizes().pipeline - 1;
  const auto body =
      register_module(is_gpt2 ? "transformer" : "model", std::make_shared<torch::nn::Module>());
  const std::string root = is_gpt2 ? "transformer." : "model.";
  const auto holder = [&](torch::nn::Module& parent, const std::string& prefix, const char* name,
                          const std::vector<std::int64_t>& shape) {
    auto made = parent.register_module(name, std::make_shared<WeightHolder>());
    made->weight = store.add_whole(*made, prefix + name + ".", "weight", shape, Beginning::kNormal);
    return made;
  };
  if (is_first_ || (is_last_ && model.tied_head)) {
    embedding_ = holder(*body, root, is_gpt2 ? "wte" : "embed_tokens",
                        {model.vocab_size, model.hidden_size});
    if (model.tied_head) {
      store.parameters.back().kind = parallel::ParameterKind::kTiedEmbedding;
    }
  }
  if (is_first_ && is_gpt2) {
    positions_ = holder(*body, root, "wpe", {model.max_positions, model.hidden_size});
  }
  const auto layers =
      body->register_module(is_gpt2 ? "h" : "layers", std::make_shared<torch::nn::Module>());
  const std::vector<int> stage_of = store.groups.layout().stage_of_layers(model.num_layers);
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (stage_of[static_cast<std::size_t>(layer)] == stage) {
      blocks_.push_back(layers->register_module(
          std::to_string(layer), std::make_shared<TrainableBlock>(store, layer, options)));
    }
  }
  if (is_last_) {
    const char* name = is_gpt2 ? "ln_f" : "norm";
    norm_ = body->register_module(name, std::make_shared<TrainableNorm>(store, root + name + "."));
    if (!model.tied_head) {
      head_ = holder(*this, "", "lm_head", {model.vocab_size, model.hidden_size});
    }
  }
}

at::Tensor DecoderStage::embed(const StageTokens& tokens) {
  const at::Tensor h = at::embedding(embedding_->weight, tokens.token_ids);
  return positions_ ? h + at::embedding(positions_->weight, tokens.positions) : h;
}

BlockOutput DecoderStage::run_block(TrainableBlock& block, const at::Tensor& h,
                                    const StageTokens& tokens, LayerStatistics* statistics) {
  const auto count = [&](const BlockOutput& output) {
    if (statistics != nullptr) {
      add_statistics(*statistics, *output.moe);
      if (output.counts.defined()) {
        statistics->unread.push_back(output.counts);
      }
    }
  };
  if (!options_.recompute) {
    BlockOutput output = block.forward(h, tokens);
    count(output);
    return output;
  }
  // The second run lives in the graph: it holds its tokens, and counts nothing.
  const auto kept = std::make_shared<StageTokens>(tokens);
  const std::vector<at::Tensor> results = recomputed(
      [&block, kept, count](const at::Tensor& x, bool again) -> std::vector<at::Tensor> {
        const BlockOutput output = block.forward(x, *kept);
        if (!again) {
          count(output);
        }
        return output.aux_loss.defined() ? std::vector{output.h, output.aux_loss}
                                         : std::vector{output.h};
      },
      h);
  return {results[0], results.size() > 1 ? results[1] : at::Tensor(), std::nullopt, {}};
}

StageOutput DecoderStage::run_layers(const at::Tensor& h, const StageTokens& tokens,
                                     std::vector<LayerStatistics>& statistics) {
  StageOutput result;
  result.h = h;
  std::size_t moe_layer = 0;
  for (const auto& block : blocks_) {
    LayerStatistics* own = block->moe() != nullptr ? &statistics.at(moe_layer++) : nullptr;
    BlockOutput output = run_block(*block, result.h, tokens, own);
    result.h = output.h;
    if (output.aux_loss.defined()) {
      result.aux_losses.push_back(output.aux_loss);
    }
  }
  return result;
}

at::Tensor DecoderStage::loss_sum(const at::Tensor& h, const StageTokens& tokens) {
  return cross_entropy_sum(norm_->forward(h), head_ ? head_->weight : embedding_->weight,
                           tokens.targets, options_.loss_chunk, options_.reference);
}

void add_statistics(LayerStatistics& sum, const nn::MoEStatistics& moe) {
  gates::RoutingStatistics& routing = sum.routing;
  routing.num_tokens += moe.routing.num_tokens;
  routing.num_dropped_picks += moe.routing.num_dropped_picks;
  routing.num_dropped_tokens += moe.routing.num_dropped_tokens;
  routing.num_bad_tokens += moe.routing.num_bad_tokens;
  routing.num_pruned_tokens += moe.routing.num_pruned_tokens;
  const auto add = [](std::vector<std::int64_t>& total, const std::vector<std::int64_t>& picks) {
    total.resize(picks.size());
    for (std::size_t e = 0; e < picks.size(); ++e) {
      total[e] += picks[e];
    }
  };
  add(routing.picks_per_expert, moe.routing.picks_per_expert);
  add(routing.unpruned_picks_per_expert, moe.routing.unpruned_picks_per_expert);
  sum.bytes_sent +=
      static_cast<std::int64_t>(moe.bytes_metadata + moe.bytes_dispatch + moe.bytes_combine);
  sum.rows_sent += moe.num_replicas;
}

}  // namespace coterie::models
