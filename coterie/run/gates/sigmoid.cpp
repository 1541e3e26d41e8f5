// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

/// The k highest logits, weight = sigmoid(logit), with `renormalise` divided by their sum. With k =
/// 1 as in BASE layers and StableMoE. P of the load balance loss is sigmoid over its sum.
class SigmoidGate final : public PickingGate {
 public:
  explicit SigmoidGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {}

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    return router_linear(batch.x, weight_, options().name, execution());
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    const at::Tensor ids = select_top_k(logits, options().top_k, execution());
    at::Tensor weights = row_sigmoid(logits.gather(1, ids));
    if (options().renormalise) {
      weights = weights / (weights.sum(1, /*keepdim=*/true) + kTiny);
    }
    const at::Tensor scores = row_sigmoid(logits);
    return {ids,
            weights,
            scores / (scores.sum(1, /*keepdim=*/true) + kTiny),
            {logits, scores, options().renormalise}};
  }

 private:
  static constexpr double kTiny = 1e-20;  // as DeepSeek: all scores may round to 0

  at::Tensor weight_;
};

}  // namespace

std::shared_ptr<Gate> make_sigmoid_gate(const GateOptions& options) {
  return std::make_shared<SigmoidGate>(options);
}

}  // namespace coterie::gates
