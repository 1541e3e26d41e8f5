// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/moe_block.hpp"
#include "coterie/models/router.hpp"

namespace coterie::models {
namespace {

class ReferenceBlock final : public MoeBlock {
 public:
  ReferenceBlock(const ModelConfig& config, const Weights& weights)
      : config_(config), weights_(weights) {}

  void forward(std::int64_t moe_layer, const at::Tensor& x, at::Tensor& y,
               layer::RoutingRecord& routing) override {
    const std::int64_t T = x.size(0);
    const std::int64_t k = config_.top_k;
    const auto layer =
        static_cast<std::size_t>(config_.moe_layers[static_cast<std::size_t>(moe_layer)]);
    const LayerWeights& weights = weights_.layers[layer];
    const Router router = make_router(config_, weights);
    const at::Tensor logits = at::linear(x, weights.router).contiguous();
    routing = {};
    routing.num_tokens = T;
    routing.top_k = static_cast<std::int32_t>(k);
    routing.expert_ids.resize(static_cast<std::size_t>(T * k));
    routing.weights.resize(static_cast<std::size_t>(T * k));
    for (std::int64_t t = 0; t < T; ++t) {
      const auto pick = static_cast<std::size_t>(t * k);
      const std::span row(logits.const_data_ptr<float>() + t * config_.num_experts,
                          static_cast<std::size_t>(config_.num_experts));
      const bool usable = router.choose(
          row, std::span(routing.expert_ids).subspan(pick, static_cast<std::size_t>(k)),
          std::span(routing.weights).subspan(pick, static_cast<std::size_t>(k)));
      COTERIE_REQUIRE(usable, "layer ", layer, ", token ", t,
                      ": the router's logits hold NaN or +inf, or are all -inf");
    }
    y.zero_();
    for (std::int64_t e = 0; e < config_.num_experts; ++e) {
      add_expert(e, weights, x, y, routing);
    }
  }

 private:
  /// y += weight * down(silu(gate x) * up x) for the tokens that chose expert e.
  void add_expert(std::int64_t e, const LayerWeights& weights, const at::Tensor& x, at::Tensor& y,
                  const layer::RoutingRecord& routing) const {
    std::vector<std::int64_t> tokens;
    std::vector<float> shares;
    for (std::size_t i = 0; i < routing.expert_ids.size(); ++i) {
      if (routing.expert_ids[i] == e) {
        tokens.push_back(static_cast<std::int64_t>(i) / config_.top_k);
        shares.push_back(routing.weights[i]);
      }
    }
    if (tokens.empty()) {
      return;
    }
    const at::Tensor rows = at::tensor(tokens, at::kLong);
    const at::Tensor gate_up = weights.gate_up[static_cast<std::size_t>(e)].to(at::kFloat);
    const auto halves = at::linear(x.index_select(0, rows), gate_up).chunk(2, 1);
    const at::Tensor inner = at::silu(halves[0]) * halves[1];
    const at::Tensor down = weights.down[static_cast<std::size_t>(e)].to(at::kFloat);
    y.index_add_(0, rows, at::linear(inner, down) * at::tensor(shares, at::kFloat).unsqueeze(1));
  }

  const ModelConfig& config_;
  const Weights& weights_;
};

}  // namespace

std::unique_ptr<MoeBlock> make_reference_block(const ModelConfig& config, const Weights& weights) {
  return std::make_unique<ReferenceBlock>(config, weights);
}

}  // namespace coterie::models
