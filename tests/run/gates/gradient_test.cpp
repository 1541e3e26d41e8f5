// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gate_case.hpp"

namespace coterie::gates {
namespace {

/// Everything differentiable in a routing, each entry with a weight of its own.
at::Tensor loss_of(const Routing& routing) {
  at::Tensor loss = dot_with_fixed(routing.logits, 1) + 2.0 * routing.aux_loss;
  for (const at::Tensor& part : {routing.weights, routing.dispatch, routing.combine}) {
    if (part.defined()) {
      loss = loss + dot_with_fixed(part, 2);
    }
  }
  return loss;
}

TEST(GateGradients, EqualFiniteDifferencesForEveryGate) {
  for (const GateOptions& o : every_gate()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 21);
    TokenBatch batch = random_batch({5, 0, 4}, o.hidden, 22);
    batch.training = true;
    batch.x.requires_grad_(true);
    batch.is_real = at::ones({9}, at::kBool);
    batch.is_real[2] = false;
    batch.num_step_sequences = 3;
    std::vector<at::Tensor> inputs = gate->parameters();
    inputs.push_back(batch.x);
    EXPECT_LT(gradient_error(inputs, [&] { return loss_of(gate->forward(batch)); }), 1e-8);
    for (const at::Tensor& input : inputs) {
      EXPECT_GT(input.grad().abs().max().item<double>(), 0.0) << "an input without gradient";
    }
    EXPECT_EQ(batch.x.grad()[2].abs().max().item<double>(), 0.0) << "padding learns";
  }
}

TEST(GateGradients, AuxiliaryGradientIsTheCoefficientTimesThatOfCoefficientOne) {
  for (GateOptions o : every_gate()) {
    SCOPED_TRACE(describe(o));
    std::vector<at::Tensor> gradients;
    const double load_balance = o.balance.load_balance == 0.0 ? 0.0 : 1.0;
    for (const double coefficient : {1.0, 0.01}) {
      o.balance.load_balance = coefficient * load_balance;
      o.balance.z_loss = coefficient;
      const auto gate = random_gate(o, 23);
      gate->forward(random_batch({6, 5}, o.hidden, 24)).aux_loss.backward();
      gradients.push_back(gate->named_parameters()["weight"].grad());
    }
    EXPECT_GT(gradients[0].abs().max().item<double>(), 1e-3);
    EXPECT_LT(max_difference(gradients[0] * 0.01, gradients[1]), 1e-14);
  }
}

TEST(GateGradients, AFrozenGateGivesNoAuxiliaryGradient) {
  for (const GateOptions& o : every_gate()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 25);
    TokenBatch batch = random_batch({6}, o.hidden, 26);
    batch.x.requires_grad_(true);
    EXPECT_TRUE(gate->forward(batch).aux_loss.requires_grad());
    for (at::Tensor& parameter : gate->parameters()) {
      parameter.requires_grad_(false);
    }
    const Routing routing = gate->forward(batch);
    EXPECT_GT(routing.aux_loss.item<double>(), 0.0);
    EXPECT_FALSE(routing.aux_loss.requires_grad());
    EXPECT_TRUE((routing.ids.defined() ? routing.weights : routing.combine).requires_grad());
  }
}

}  // namespace
}  // namespace coterie::gates
