// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/balance_loss.hpp"
#include "coterie/run/gates/gate_kinds.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/select.hpp"

namespace coterie::gates {
namespace {

constexpr const char* kBias = "e_score_correction_bias";

/// DeepSeek-V3, section 2.1.2, eq. (12)-(16), and transformers' DeepseekV3TopkRouter:
///   s = sigmoid(x W) (V2: softmax); choice = s + bias
///   a group's score: sum of its two highest choices (V2: the highest); the best groups are kept
///   ids = the k highest choices in kept groups
///   weights = s[ids] (never the biased score), over their sum + 1e-20 if renormalise, * scaling
class DeepseekGate final : public PickingGate {
 public:
  explicit DeepseekGate(const GateOptions& options)
      : PickingGate(options), weight_(new_weight("weight", options.num_experts, options.hidden)) {
    if (options.selection_bias) {
      bias_ = register_buffer(kBias, at::zeros({options.num_experts}, type()));
    }
  }

  void update_selection_bias(std::span<const std::int64_t> step_picks) override {
    if (options().selection_bias) {
      update_bias(bias_, step_picks, options().bias_update_rate);
    }
  }

 protected:
  at::Tensor logits(const TokenBatch& batch) override {
    return router_linear(batch.x, weight_, options().name, execution());
  }

  Choice choose(const TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    const GateOptions& o = options();
    const bool sigmoid = o.score == ScoreFunction::kSigmoid;
    const at::Tensor scores = sigmoid ? row_sigmoid(logits) : at::softmax(logits, 1);
    Choice choice;
    const at::Tensor selection = keep_groups(biased(scores.detach()));
    choice.ids = select_top_k(selection, o.top_k, execution());
    choice.scores = {selection, scores, o.renormalise, o.scaling};
    choice.weights = scores.gather(1, choice.ids);
    if (o.renormalise) {
      choice.weights = choice.weights / (choice.weights.sum(1, /*keepdim=*/true) + kTiny);
    }
    choice.weights = choice.weights * o.scaling;
    choice.probabilities =
        sigmoid ? scores / (scores.sum(1, /*keepdim=*/true) + kTiny) : scores;  // eq. (19)
    return choice;
  }

 private:
  static constexpr double kTiny = 1e-20;

  at::Tensor biased(const at::Tensor& scores) {
    if (!options().selection_bias) {
      return scores;
    }
    COTERIE_REQUIRE(at::isfinite(bias_).all().item<bool>(), options().name, ": ", kBias,
                    " holds a value that is no number");
    return scores + bias_;
  }

  /// Choices outside the kept groups become -inf.
  at::Tensor keep_groups(const at::Tensor& choices) {
    const GateOptions& o = options();
    if (o.num_groups_kept == o.num_groups) {
      return choices;
    }
    const at::Tensor grouped =
        choices.view({choices.size(0), o.num_groups, o.num_experts / o.num_groups});
    const at::Tensor group_scores =
        o.group_score == GroupScore::kMax
            ? grouped.amax(2)
            : std::get<0>(at::topk(grouped, 2, 2)).sum(2);  // two terms: one sum
    const at::Tensor kept = select_top_k(group_scores, o.num_groups_kept, execution());
    const at::Tensor mask = at::zeros_like(group_scores, at::kBool).scatter_(1, kept, true);
    return grouped.masked_fill(mask.logical_not().unsqueeze(2), kLowest).flatten(1);
  }

  static constexpr double kLowest = -std::numeric_limits<double>::infinity();

  at::Tensor weight_;
  at::Tensor bias_;  // [E], undefined without selection_bias
};

}  // namespace

std::shared_ptr<Gate> make_deepseek_gate(const GateOptions& options) {
  return std::make_shared<DeepseekGate>(options);
}

}  // namespace coterie::gates
