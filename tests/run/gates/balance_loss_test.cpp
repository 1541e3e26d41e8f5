// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "coterie/base/error.hpp"
#include "gate_case.hpp"

namespace coterie::gates {
namespace {

/// A batch's inputs of the losses: random logits and picks of 5 experts, 2 a token.
struct Case {
  TokenBatch batch;
  BalanceInputs inputs;
};

Case make_case(const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  Case result;
  result.batch = random_batch(lengths, 3, seed);
  const std::int64_t T = result.batch.num_tokens();
  result.inputs.logits = random_values({T, 5}, seed + 1);
  result.inputs.probabilities = at::softmax(random_values({T, 5}, seed + 2), 1);
  result.inputs.ids = select_top_k(random_values({T, 5}, seed + 3), 2).to(at::kInt);
  result.inputs.usable = at::ones({T}, at::kBool);
  result.inputs.num_experts = 5;
  return result;
}

double plain_loss(const Case& c, const BalanceOptions& o, std::int64_t num_step_sequences) {
  double balance = 0.0;
  double z = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t s = 0; s < c.batch.num_sequences(); ++s) {
    std::vector<double> picks(5, 0.0);
    std::vector<double> probability(5, 0.0);
    double squares = 0.0;
    double n = 0.0;
    for (std::int64_t t = c.batch.sequence_begin(s); t < c.batch.sequence_begin(s + 1); ++t) {
      if (!c.inputs.usable[t].item<bool>()) {
        continue;
      }
      n += 1;
      double sum = 0.0;
      for (std::int64_t e = 0; e < 5; ++e) {
        sum += std::exp(c.inputs.logits[t][e].item<double>());
        probability[static_cast<std::size_t>(e)] += c.inputs.probabilities[t][e].item<double>();
      }
      squares += std::log(sum) * std::log(sum);
      for (std::int64_t i = 0; i < 2; ++i) {
        picks[static_cast<std::size_t>(c.inputs.ids[t][i].item<int>())] += 1;
      }
    }
    if (n > 0) {
      ++counted;
      z += squares / n;
      for (std::size_t e = 0; e < 5; ++e) {
        balance += 5 * (picks[e] / n) * (probability[e] / n);
      }
    }
  }
  const auto S = static_cast<double>(num_step_sequences > 0 ? num_step_sequences : counted);
  return (o.load_balance * balance + o.z_loss * z) / S;
}

TEST(BalanceLoss, EqualsTheFormula) {
  const std::vector<BalanceOptions> table = {{1.0, 0.0}, {0.0, 1.0}, {0.02, 0.001}};
  for (const BalanceOptions& o : table) {
    for (const std::int64_t step_sequences : {0, 9}) {
      Case c = make_case({4, 0, 7, 1}, 3);
      c.batch.num_step_sequences = step_sequences;
      c.inputs.usable[1] = false;
      c.inputs.usable[11] = false;  // the only token of its sequence
      EXPECT_NEAR(balance_loss(c.batch, c.inputs, o).item<double>(),
                  plain_loss(c, o, step_sequences), 1e-13);
    }
  }
}

TEST(BalanceLoss, IsKWhenBalancedAndMoreWhenNot) {
  Case c = make_case({5}, 1);
  c.inputs.ids = at::tensor({0, 1, 2, 3, 4, 0, 1, 2, 3, 4}, at::kInt).view({5, 2});
  c.inputs.probabilities = at::full({5, 5}, 0.2, at::kDouble);
  EXPECT_NEAR(balance_loss(c.batch, c.inputs, {1.0}).item<double>(), 2.0, 1e-14);
  c.inputs.ids = at::tensor({0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, at::kInt).view({5, 2});
  c.inputs.probabilities = at::tensor({0.6, 0.4, 0.0, 0.0, 0.0}, at::kDouble).repeat({5, 1});
  EXPECT_NEAR(balance_loss(c.batch, c.inputs, {1.0}).item<double>(), 5.0, 1e-14);
}

TEST(BalanceLoss, IsOffWithoutCoefficients) {
  const Case c = make_case({5}, 1);
  EXPECT_FALSE(balance_loss(c.batch, c.inputs, {}).defined());
}

TEST(BalanceLoss, OppositeSequencesDoNotBalanceEachOther) {
  Case c = make_case({4, 4}, 1);
  c.inputs.ids = at::cat({at::zeros({4, 1}, at::kInt), at::ones({4, 1}, at::kInt)});
  c.inputs.probabilities = at::zeros({8, 5}, at::kDouble);
  c.inputs.probabilities.narrow(0, 0, 4).select(1, 0).fill_(1.0);
  c.inputs.probabilities.narrow(0, 4, 4).select(1, 1).fill_(1.0);
  EXPECT_NEAR(balance_loss(c.batch, c.inputs, {1.0}).item<double>(), 5.0, 1e-14);
  EXPECT_NEAR(balance_loss(c.batch, c.inputs, {1.0, 0.0, BalanceScope::kBatch}).item<double>(), 2.5,
              1e-14);
}

/// Loss and gradient of x, of the gate's weight, of a batch that is cut into calls at the given
/// sequences.
struct StepResult {
  double loss = 0.0;
  at::Tensor grad_x;
  at::Tensor grad_weight;
};

StepResult run_step(Gate& gate, const TokenBatch& whole, const std::vector<std::int64_t>& cuts) {
  StepResult result;
  std::vector<at::Tensor> gradients;
  gate.zero_grad();
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    TokenBatch part = take_sequences(whole, cuts[i - 1], cuts[i]);
    part.num_step_sequences = whole.num_step_sequences;
    part.x = part.x.detach().clone().requires_grad_(true);
    const at::Tensor loss = gate.forward(part).aux_loss;
    loss.backward();
    result.loss += loss.item<double>();
    gradients.push_back(part.x.grad());
  }
  result.grad_x = at::cat(gradients);
  result.grad_weight = gate.named_parameters()["weight"].grad().clone();
  return result;
}

TEST(BalanceLoss, OfAStepDoesNotDependOnLayoutAccumulationOrPadding) {
  for (const GateOptions& o : every_gate()) {
    if (o.balance.scope == BalanceScope::kBatch) {
      continue;
    }
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 3);
    TokenBatch batch = random_batch({5, 9, 0, 3, 1, 6}, o.hidden, 4);
    const StepResult alone = run_step(*gate, batch, {0, 6});
    batch.num_step_sequences = 5;  // one of six is empty
    for (const auto& cuts : std::vector<std::vector<std::int64_t>>{
             {0, 6}, {0, 1, 2, 3, 4, 5, 6}, {0, 2, 6}, {0, 0, 5, 6, 6}}) {
      const StepResult step = run_step(*gate, batch, cuts);
      EXPECT_NEAR(step.loss, alone.loss, 1e-13);
      EXPECT_LT(max_difference(step.grad_x, alone.grad_x), 1e-14);
      EXPECT_LT(max_difference(step.grad_weight, alone.grad_weight), 1e-13);
    }
    TokenBatch padded = pad_left(batch, 4);
    const StepResult step = run_step(*gate, padded, {0, 2, 3, 6});
    EXPECT_NEAR(step.loss, alone.loss, 1e-13);
    EXPECT_LT(max_difference(real_rows(padded, step.grad_x), alone.grad_x), 1e-14);
    EXPECT_LT(max_difference(step.grad_weight, alone.grad_weight), 1e-13);
  }
}

TEST(BalanceLoss, ByBatchDependsOnAccumulationAsItsNameSays) {
  GateOptions o = small_gate(GateKind::kTopkSoftmax);
  o.balance = {1.0, 0.0, BalanceScope::kBatch};
  const auto gate = random_gate(o, 3);
  TokenBatch batch = random_batch({8, 8}, o.hidden, 4);
  batch.num_step_sequences = 2;
  const double once = run_step(*gate, batch, {0, 2}).loss;
  EXPECT_GT(std::abs(once - run_step(*gate, batch, {0, 1, 2}).loss), 1e-3);
}

TEST(BalanceLoss, OfSequencesCutUpOverRanksAddsUp) {
  for (GateOptions o : every_gate()) {
    if (o.kind == GateKind::kExpertChoice || o.kind == GateKind::kSoftMoe) {
      continue;
    }
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 3);
    const TokenBatch batch = random_batch({7, 2, 5}, o.hidden, 4);
    const StepResult whole = run_step(*gate, batch, {0, 3});
    // Two ranks: of each sequence the first has 3, 0 and 4 tokens, the second the others. What the
    // ranks want summed is written down in a first round and handed out in a second.
    std::vector<std::vector<std::int64_t>> tokens = {{0, 1, 2, 9, 10, 11, 12},
                                                     {3, 4, 5, 6, 7, 8, 13}};
    const std::vector<std::vector<std::int64_t>> offsets = {{0, 3, 3, 7}, {0, 4, 6, 7}};
    at::Tensor sum;
    double loss = 0.0;
    at::Tensor grad_x = at::zeros_like(batch.x);
    gate->zero_grad();
    for (const bool second_round : {false, true}) {
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const at::Tensor rows = at::tensor(tokens[rank], at::kLong);
        TokenBatch part = batch;
        part.x = batch.x.index_select(0, rows).requires_grad_(true);
        part.token_ids = batch.token_ids.index_select(0, rows);
        part.sequence_offsets = offsets[rank];
        part.sum_shards = [&](at::Tensor& counts) {
          if (!second_round) {
            sum = sum.defined() ? sum + counts : counts.clone();
          } else {
            counts.copy_(sum);
          }
        };
        const at::Tensor share = gate->forward(part).aux_loss;
        if (second_round) {
          share.backward();
          loss += share.item<double>();
          grad_x.index_copy_(0, rows, part.x.grad());
        }
      }
    }
    EXPECT_NEAR(loss, whole.loss, 1e-13);
    EXPECT_LT(max_difference(grad_x, whole.grad_x), 1e-14);
    EXPECT_LT(max_difference(gate->named_parameters()["weight"].grad(), whole.grad_weight), 1e-13);
  }
}

TEST(SelectionBias, MovesByItsRateTowardsTheMeanOnceACall) {
  GateOptions o = small_gate(GateKind::kDeepseek, 4, 2);
  o.selection_bias = true;
  o.bias_update_rate = 0.5;
  const auto gate = make_gate(o);
  const at::Tensor before = gate->forward(random_batch({5}, o.hidden, 1)).weights;
  const std::vector<std::int64_t> picks = {10, 3, 5, 2};  // mean 5
  gate->update_selection_bias(picks);
  const at::Tensor bias = gate->named_buffers()["e_score_correction_bias"];
  EXPECT_TRUE(at::equal(bias, at::tensor({-0.5, 0.5, 0.0, 0.5}, at::kDouble)));
  gate->forward(random_batch({5}, o.hidden, 1));  // a forward or a recompute changes nothing
  EXPECT_TRUE(at::equal(bias, at::tensor({-0.5, 0.5, 0.0, 0.5}, at::kDouble)));
  gate->update_selection_bias(picks);
  EXPECT_TRUE(at::equal(bias, at::tensor({-1.0, 1.0, 0.0, 1.0}, at::kDouble)));
  const std::vector<std::int64_t> short_counts = {1, 2};
  EXPECT_THROW(gate->update_selection_bias(short_counts), Error);
}

TEST(SelectionBias, EvensOutLoads) {
  GateOptions o = small_gate(GateKind::kDeepseek, 8, 2);
  o.selection_bias = true;
  o.bias_update_rate = 0.01;
  const auto gate = random_gate(o, 4);
  gate->named_buffers()["e_score_correction_bias"].zero_();
  const TokenBatch batch = random_batch({512}, o.hidden, 5);
  const auto largest = [&] {
    const auto picks = gate->forward(batch).statistics.picks_per_expert;
    return *std::max_element(picks.begin(), picks.end());
  };
  const std::int64_t before = largest();
  for (int step = 0; step < 100; ++step) {
    gate->update_selection_bias(gate->forward(batch).statistics.picks_per_expert);
  }
  EXPECT_GT(before, 160);  // mean 128
  EXPECT_LT(largest(), 140);
}

TEST(SelectionBias, OfAGateWithoutOneIsLeftAlone) {
  const auto gate = make_gate(small_gate(GateKind::kTopkSoftmax));
  const std::vector<std::int64_t> picks(8, 1);
  gate->update_selection_bias(picks);
  EXPECT_TRUE(gate->buffers().empty());
}

}  // namespace
}  // namespace coterie::gates
