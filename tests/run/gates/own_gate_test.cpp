// SPDX-License-Identifier: Apache-2.0
// The gate of docs/adding_a_gate.md, as it stands there.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/gates.hpp"
#include "gate_case.hpp"

// [example]
/// The k experts with the highest softplus(x W), weights = these scores over their sum.
class SoftplusGate final : public coterie::gates::PickingGate {
 public:
  explicit SoftplusGate(coterie::gates::GateOptions options)
      : PickingGate(custom(std::move(options))),
        weight_(new_weight("weight", this->options().num_experts, this->options().hidden)) {}

 protected:
  at::Tensor logits(const coterie::gates::TokenBatch& batch) override {
    return coterie::gates::router_linear(batch.x, weight_, options().name, execution());
  }

  Choice choose(const coterie::gates::TokenBatch& /*batch*/, const at::Tensor& logits,
                const at::Tensor& /*usable*/) override {
    const at::Tensor scores = coterie::gates::row_softplus(logits);
    Choice choice;
    choice.ids = coterie::gates::select_top_k(logits, options().top_k, execution());
    choice.weights = scores.gather(1, choice.ids);
    choice.weights = choice.weights / choice.weights.sum(1, /*keepdim=*/true);
    choice.probabilities = scores / scores.sum(1, /*keepdim=*/true);
    return choice;
  }

 private:
  static coterie::gates::GateOptions custom(coterie::gates::GateOptions options) {
    options.kind = coterie::gates::GateKind::kCustom;
    return options;
  }

  at::Tensor weight_;
};
// [example]

namespace coterie::gates {
namespace {

TEST(OwnGate, HasPaddingLossesAndGradientsFromTheBase) {
  GateOptions o = small_gate(GateKind::kTopkSoftmax, 8, 3);
  o.balance = {0.5, 0.1};
  SoftplusGate gate(o);
  randomize(gate, 3);
  TokenBatch batch = pad_left(random_batch({5, 4}, o.hidden, 4), 2);
  batch.x.requires_grad_(true);
  const Routing routing = gate.forward(batch);
  EXPECT_EQ(routing.statistics.num_tokens, 9);
  EXPECT_TRUE(routing.ids[0].eq(-1).all().item<bool>());
  const at::Tensor expected = at::softplus(
      routing.logits.gather(1, routing.ids[3].to(at::kLong).view({1, 3}).expand({13, 3})))[3];
  EXPECT_LT(max_difference(routing.weights[3], expected / expected.sum()), 1e-13);
  std::vector<at::Tensor> inputs = gate.parameters();
  inputs.push_back(batch.x);
  const double error = gradient_error(inputs, [&] {
    const Routing again = gate.forward(batch);
    return dot_with_fixed(again.weights, 5) + again.aux_loss;
  });
  EXPECT_LT(error, 1e-8);
  EXPECT_THROW(make_gate(gate.options()), Error);
}

}  // namespace
}  // namespace coterie::gates
