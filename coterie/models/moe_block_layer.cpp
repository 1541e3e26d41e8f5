// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "coterie/base/error.hpp"
#include "coterie/models/moe_block.hpp"

namespace coterie::models {
namespace {

layer::MoeOptions layer_options(const ModelConfig& config, const DecoderOptions& options,
                                std::int32_t number) {
  layer::MoeOptions result;
  result.name = "layer " + std::to_string(number);
  result.hidden = config.hidden_size;
  result.intermediate = config.expert_intermediate_size;
  result.num_experts = static_cast<std::int32_t>(config.num_experts);
  result.top_k = static_cast<std::int32_t>(config.top_k);
  result.norm_topk_prob = config.renormalise;
  result.exchange = options.exchange;
  result.plain_loops = options.moe == MoePath::kPlainLoops;
  return result;
}

/// The pruner of a MoE layer (counted from 0), or none.
std::shared_ptr<const pruning::LayerPruner> pruner_of(const DecoderOptions& options,
                                                      const placement::LayerPlacement& placement,
                                                      std::size_t moe_layer) {
  const pruning::PruningOptions& policy = options.pruning->options;
  const pruning::SimilarityTable* similarity =
      options.similarity ? &options.similarity->tables[moe_layer] : nullptr;
  return std::make_shared<pruning::LayerPruner>(placement, policy, policy.budget_of(moe_layer),
                                                similarity);
}

std::vector<kernels::ConstMatrixView> views_of(const std::vector<at::Tensor>& matrices) {
  std::vector<kernels::ConstMatrixView> views;
  for (const at::Tensor& matrix : matrices) {
    views.push_back(matrix.defined() ? view_of(matrix) : kernels::ConstMatrixView{});
  }
  return views;
}

class LayerBlock final : public MoeBlock {
 public:
  LayerBlock(const ModelConfig& config, const Weights& weights, const DecoderOptions& options,
             const std::vector<placement::LayerPlacement>& placements) {
    const auto workspace = std::make_shared<layer::Workspace>();  // layers take turns
    for (std::size_t i = 0; i < config.moe_layers.size(); ++i) {
      const std::int32_t number = config.moe_layers[i];
      const LayerWeights& layer = weights.layers[static_cast<std::size_t>(number)];
      layer::MoeOptions moe = layer_options(config, options, number);
      if (options.pruning) {
        moe.pruner = pruner_of(options, placements[i], i);
      }
      layers_.push_back(std::make_unique<layer::MoeLayer>(
          std::move(moe),
          layer::MoeWeights{view_of(layer.router), views_of(layer.gate_up), views_of(layer.down)},
          placements.empty() ? std::nullopt : std::optional(placements[i]), options.communicator,
          options.execution, workspace));
    }
  }

  void forward(std::int64_t moe_layer, const at::Tensor& x, at::Tensor& y,
               layer::RoutingRecord& record) override {
    layers_[static_cast<std::size_t>(moe_layer)]->forward(view_of(x), mutable_view_of(y), &record);
  }

 private:
  std::vector<std::unique_ptr<layer::MoeLayer>> layers_;
};

}  // namespace

std::unique_ptr<MoeBlock> make_layer_block(
    const ModelConfig& config, const Weights& weights, const DecoderOptions& options,
    const std::vector<placement::LayerPlacement>& placements) {
  return std::make_unique<LayerBlock>(config, weights, options, placements);
}

}  // namespace coterie::models
