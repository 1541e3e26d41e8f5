// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/models/moe_block.hpp"

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
    const at::Tensor logits = at::linear(x, weights.router);
    routing = {};
    routing.num_tokens = T;
    routing.top_k = static_cast<std::int32_t>(k);
    routing.expert_ids.resize(static_cast<std::size_t>(T * k));
    routing.weights.resize(static_cast<std::size_t>(T * k));
    for (std::int64_t t = 0; t < T; ++t) {
      choose(logits[t].contiguous(), static_cast<std::int64_t>(layer), t, routing);
    }
    y.zero_();
    for (std::int64_t e = 0; e < config_.num_experts; ++e) {
      add_expert(e, weights, x, y, routing);
    }
  }

 private:
  /// Softmax over all experts, the k best, ties to the lowest id (stable sort).
  void choose(const at::Tensor& logits, std::int64_t layer, std::int64_t token,
              layer::RoutingRecord& routing) const {
    COTERIE_REQUIRE(!logits.isnan().any().item<bool>(), "layer ", layer, ", token ", token,
                    ": the router's logits hold NaN");
    const at::Tensor shares = at::softmax(logits, 0);
    const float* share = shares.const_data_ptr<float>();
    const float* logit = logits.const_data_ptr<float>();
    std::vector<std::int32_t> order(static_cast<std::size_t>(config_.num_experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logit[a] > logit[b]; });
    float sum = 0;
    for (std::int64_t j = 0; j < config_.top_k; ++j) {
      sum += share[order[static_cast<std::size_t>(j)]];
    }
    for (std::int64_t j = 0; j < config_.top_k; ++j) {
      const std::int32_t expert = order[static_cast<std::size_t>(j)];
      const auto at = static_cast<std::size_t>(token * config_.top_k + j);
      routing.expert_ids[at] = expert;
      routing.weights[at] = config_.renormalise ? share[expert] / sum : share[expert];
    }
  }

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
