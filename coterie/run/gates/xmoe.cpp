// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

/// X-MoE (Chi et al. 2022), eq. (5)-(6): logits = cos(P x, e_i) / tau with a projection P to few
/// dimensions, expert embeddings e_i (`weight`) and a learned temperature tau, at least 0.01; then
/// softmax over all experts and the k best, with `renormalise` divided by their sum.
class XmoeGate final : public PickingGate {
 public:
  explicit XmoeGate(const GateOptions& options) : PickingGate(options) {
    const std::int64_t width =
        options.projection > 0 ? options.projection : std::max(1, options.num_experts / 2);
    projection_ = new_weight("projection", width, options.hidden);
    weight_ = new_weight("weight", options.num_experts, width);
    temperature_ = register_parameter("temperature", at::full({1}, options.temperature, type()));
  }

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    const std::string& name = options().name;
    const at::Tensor narrow = router_linear(batch.x, projection_, name, execution());
    const at::Tensor cosine =
        router_linear(unit_rows(narrow), unit_rows(weight_), name, execution());
    return scale_rows(cosine, temperature_.clamp_min(kLeastTemperature).reciprocal());
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    Choice choice;
    choice.ids = select_top_k(logits, options().top_k, execution());
    choice.probabilities = at::softmax(logits, 1);
    choice.weights = choice.probabilities.gather(1, choice.ids);
    choice.scores = {choice.probabilities, choice.probabilities, options().renormalise};
    if (options().renormalise) {
      choice.weights = choice.weights / choice.weights.sum(1, /*keepdim=*/true);
    }
    return choice;
  }

 private:
  static constexpr double kLeastTemperature = 0.01;

  at::Tensor projection_;
  at::Tensor weight_;
  at::Tensor temperature_;
};

}  // namespace

std::shared_ptr<Gate> make_xmoe_gate(const GateOptions& options) {
  return std::make_shared<XmoeGate>(options);
}

}  // namespace coterie::gates
