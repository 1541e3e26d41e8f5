// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/moe_block.hpp"
#include "coterie/models/row_math.hpp"

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
             const std::vector<placement::LayerPlacement>& placements)
      : top_k_(config.top_k), execution_(options.execution) {
    const auto workspace = std::make_shared<layer::Workspace>();  // layers take turns
    for (std::size_t i = 0; i < config.moe_layers.size(); ++i) {
      const std::int32_t number = config.moe_layers[i];
      const LayerWeights& layer = weights.layers[static_cast<std::size_t>(number)];
      layer::MoeOptions moe = layer_options(config, options, number);
      if (options.pruning) {
        moe.pruner = pruner_of(options, placements[i], i);
      }
      if (!config.router.is_plain()) {
        routers_.emplace_back(make_router(config, layer));
        routed_.push_back({number, layer.router, moe.pruner});
        moe.pruner = nullptr;  // it follows the router, here
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
    const auto i = static_cast<std::size_t>(moe_layer);
    if (routers_.empty()) {
      layers_[i]->forward(view_of(x), mutable_view_of(y), &record);
      return;
    }
    const Routed& routed = routed_[i];
    const at::Tensor logits = apply_linear(x, routed.weight, {}, execution_);
    const std::int64_t bad_token = choose(i, logits);
    layers_[i]->forward_routed(view_of(x), {ids_, weights_, {}}, mutable_view_of(y), &record);
    if (record.keep_logits) {
      const float* values = logits.const_data_ptr<float>();
      record.logits.assign(values, values + logits.numel());
    }
    record.unpruned_ids = unpruned_ids_;
    record.num_pruned_tokens = num_pruned_;
    // Reported last, so that ranks without the fault are not left waiting in a collective.
    COTERIE_REQUIRE(bad_token < 0, "layer ", routed.number, ": token ", bad_token,
                    ": its router logits hold NaN or +inf, or are all -inf");
  }

 private:
  /// A layer whose routing is decided here and not by the kernels' gate.
  struct Routed {
    std::int32_t number = 0;
    at::Tensor weight;  // [E, H]
    std::shared_ptr<const pruning::LayerPruner> pruner;
  };

  /// Fills ids_ and weights_; returns the first token whose logits are unusable, or -1.
  std::int64_t choose(std::size_t i, const at::Tensor& logits) {
    const std::int64_t T = logits.size(0);
    const auto E = static_cast<std::size_t>(logits.size(1));
    const auto k = static_cast<std::size_t>(top_k_);
    ids_.resize(static_cast<std::size_t>(T) * k);
    weights_.resize(ids_.size());
    std::int64_t bad_token = -1;
    const auto row = [&](std::int64_t t) {
      return std::span(logits.const_data_ptr<float>() + static_cast<std::size_t>(t) * E, E);
    };
    for (std::int64_t t = 0; t < T; ++t) {
      const std::size_t pick = static_cast<std::size_t>(t) * k;
      if (!routers_[i].choose(row(t), std::span(ids_).subspan(pick, k),
                              std::span(weights_).subspan(pick, k)) &&
          bad_token < 0) {
        bad_token = t;
      }
    }
    num_pruned_ = 0;
    unpruned_ids_.clear();
    if (const auto& pruner = routed_[i].pruner; pruner != nullptr) {
      unpruned_ids_ = ids_;
      for (std::int64_t t = 0; t < T; ++t) {
        const std::size_t pick = static_cast<std::size_t>(t) * k;
        num_pruned_ += routers_[i].prune(*pruner, row(t), std::span(ids_).subspan(pick, k),
                                         std::span(weights_).subspan(pick, k))
                           ? 1
                           : 0;
      }
    }
    return bad_token;
  }

  std::int64_t top_k_;
  kernels::Execution execution_;
  std::vector<std::unique_ptr<layer::MoeLayer>> layers_;
  std::vector<Router> routers_;             // [MoE layers], or none where the kernels' gate routes
  std::vector<Routed> routed_;              // as routers_
  std::vector<std::int32_t> ids_;           // [T, k]
  std::vector<float> weights_;              // [T, k]
  std::vector<std::int32_t> unpruned_ids_;  // [T, k] with a pruner
  std::int64_t num_pruned_ = 0;
};

}  // namespace

Router make_router(const ModelConfig& config, const LayerWeights& weights) {
  const at::Tensor& bias = weights.router_bias;
  return {config, bias.defined() ? std::span(bias.const_data_ptr<float>(),
                                             static_cast<std::size_t>(bias.numel()))
                                 : std::span<const float>()};
}

std::unique_ptr<MoeBlock> make_layer_block(
    const ModelConfig& config, const Weights& weights, const DecoderOptions& options,
    const std::vector<placement::LayerPlacement>& placements) {
  return std::make_unique<LayerBlock>(config, weights, options, placements);
}

}  // namespace coterie::models
