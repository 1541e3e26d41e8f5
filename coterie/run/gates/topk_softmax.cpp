// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

/// weights = softmax over all experts of the k best, as they are or divided by their sum; or
/// softmax over the k best logits.
class TopkSoftmaxGate final : public PickingGate {
 public:
  explicit TopkSoftmaxGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {}

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    return router_linear(batch.x, weight_, options().name, execution());
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    Choice choice;
    choice.ids = select_top_k(logits, options().top_k, execution());
    choice.probabilities = at::softmax(logits, 1);
    const bool over_selected = options().softmax_over == SoftmaxOver::kSelected;
    choice.scores = {choice.probabilities, choice.probabilities,
                     over_selected || options().renormalise};
    if (over_selected) {
      choice.weights = at::softmax(logits.gather(1, choice.ids), 1);
      return choice;
    }
    choice.weights = choice.probabilities.gather(1, choice.ids);
    if (options().renormalise) {
      choice.weights = choice.weights / choice.weights.sum(1, /*keepdim=*/true);
    }
    return choice;
  }

 private:
  at::Tensor weight_;
};

}  // namespace

std::shared_ptr<Gate> make_topk_softmax_gate(const GateOptions& options) {
  return std::make_shared<TopkSoftmaxGate>(options);
}

}  // namespace coterie::gates
