// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "coterie/run/gates/capacity.hpp"
#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/select.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// Most experts that may pick one token: what a row can tell the exchange.
constexpr std::int64_t kMostExperts = 255;

/// Expert choice (Zhou et al. 2022, section 3.2): S = softmax over experts of x W; in each sequence
/// of n real tokens each expert picks the C tokens with the highest S, C = ceil(capacity_factor n /
/// E), at least 1, at most n; weight = S. Ties go to the earlier token. A token that more than 255
/// experts picked keeps the 255 with the highest S.
class ExpertChoiceGate final : public PickingGate {
 public:
  explicit ExpertChoiceGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {}

  [[nodiscard]] bool selects_within_sequence() const override { return true; }

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    return router_linear(batch.x, weight_, options().name, execution());
  }

  Choice choose(const TokenBatch& batch, const at::Tensor& logits,
                const at::Tensor& usable) override {
    Choice choice;
    choice.probabilities = at::softmax(logits, 1);
    const at::Tensor scores = choice.probabilities.detach();
    // Probabilities are at least 0, so -1 marks what was not picked and is the lowest.
    at::Tensor picked = at::full_like(scores, -1.0);
    for (const std::vector<std::int64_t>& tokens : usable_by_sequence(batch, usable)) {
      pick_tokens(scores, at::tensor(tokens, at::kLong).to(scores.device()), picked);
    }
    choice.ids = select_top_k(picked, std::min(kMostExperts, scores.size(1)), execution());
    choice.weights = choice.probabilities.gather(1, choice.ids);
    choice.ids = at::where(picked.gather(1, choice.ids).ge(0), choice.ids, std::int64_t{-1});
    return choice;
  }

 private:
  /// Copies the scores that experts pick among `tokens` to `picked` [T, E].
  void pick_tokens(const at::Tensor& scores, const at::Tensor& tokens, at::Tensor& picked) {
    const std::int64_t n = tokens.size(0);
    if (n == 0) {
      return;
    }
    CapacityOptions capacity;
    capacity.factor = options().capacity_factor;
    const std::int64_t count = expert_capacity(capacity, n, 1, scores.size(1));
    const at::Tensor of_experts = scores.index_select(0, tokens).t().contiguous();  // [E, n]
    const at::Tensor chosen = select_top_k(of_experts, count, execution());         // [E, C]
    const at::Tensor rows = tokens.index_select(0, chosen.flatten());
    const at::Tensor experts =
        at::arange(scores.size(1), tokens.options()).repeat_interleave(count);
    picked.index_put_({rows, experts}, scores.index({rows, experts}));
  }

  at::Tensor weight_;
};

}  // namespace

std::shared_ptr<Gate> make_expert_choice_gate(const GateOptions& options) {
  return std::make_shared<ExpertChoiceGate>(options);
}

}  // namespace coterie::gates
