// SPDX-License-Identifier: Apache-2.0
// What holds for every gate.
#include <gtest/gtest.h>

#include <limits>

#include "coterie/base/error.hpp"
#include "gate_case.hpp"

namespace coterie::gates {
namespace {

/// What a caller uses of a routing, [T, ...] each.
std::vector<at::Tensor> parts_of(const Routing& routing) {
  return routing.ids.defined() ? std::vector{routing.ids, routing.weights, routing.logits}
                               : std::vector{routing.dispatch, routing.combine, routing.logits};
}

std::vector<GateOptions> every_gate_in_both_types() {
  std::vector<GateOptions> all = every_gate();
  for (GateOptions o : every_gate()) {
    o.type = RouterType::kFloat32;
    all.push_back(o);
  }
  return all;
}

TokenBatch batch_for(const GateOptions& o, const std::vector<std::int64_t>& lengths) {
  TokenBatch batch = random_batch(lengths, o.hidden, 31);
  batch.training = true;
  if (o.type == RouterType::kFloat32) {
    batch.x = batch.x.to(at::kFloat);
  }
  return batch;
}

void expect_same_rows(const std::vector<at::Tensor>& whole, const std::vector<at::Tensor>& part,
                      std::int64_t begin) {
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(bit_equal(whole[i].narrow(0, begin, part[i].size(0)), part[i])) << "part " << i;
  }
}

TEST(EveryGate, RoutesASequenceAloneAsInAnyBatch) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 32);
    const TokenBatch batch = batch_for(o, {9, 1, 0, 33, 8});
    const auto whole = parts_of(gate->forward(batch));
    for (std::int64_t s = 0; s < 5; ++s) {
      const TokenBatch one = take_sequences(batch, s, s + 1);
      expect_same_rows(whole, parts_of(gate->forward(one)), batch.sequence_begin(s));
    }
    if (!gate->selects_within_sequence()) {
      for (std::int64_t t = 0; t < 12; ++t) {
        TokenBatch one = batch;
        one.x = batch.x.narrow(0, t, 1);
        one.token_ids = batch.token_ids.narrow(0, t, 1);
        one.sequence_offsets.clear();
        expect_same_rows(whole, parts_of(gate->forward(one)), t);
      }
    }
  }
}

TEST(EveryGate, GivesTheSameBitsAgainAndForAnyNumberOfThreads) {
  kernels::Threads pool(3);
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 33);
    std::vector<std::vector<at::Tensor>> runs;
    for (kernels::Threads* threads : {static_cast<kernels::Threads*>(nullptr),
                                      static_cast<kernels::Threads*>(nullptr), &pool}) {
      gate->set_execution({threads});
      TokenBatch batch = batch_for(o, {150, 61});
      batch.x.requires_grad_(true);
      gate->zero_grad();
      const Routing routing = gate->forward(batch);
      at::Tensor loss = dot_with_fixed(routing.logits, 5) + routing.aux_loss;
      loss.backward();
      runs.push_back(parts_of(routing));
      runs.back().push_back(routing.aux_loss);
      runs.back().push_back(batch.x.grad());
      for (const at::Tensor& parameter : gate->parameters()) {
        runs.back().push_back(parameter.grad().clone());
      }
    }
    for (std::size_t i = 0; i < runs[0].size(); ++i) {
      EXPECT_TRUE(bit_equal(runs[0][i], runs[1][i])) << "part " << i;
      EXPECT_TRUE(bit_equal(runs[0][i], runs[2][i])) << "part " << i << ", threads";
    }
  }
}

TEST(EveryGate, DoesNotSeePadding) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 34);
    const TokenBatch batch = batch_for(o, {9, 4, 12});
    TokenBatch padded = pad_left(batch, 7);
    padded.x[0].fill_(std::numeric_limits<double>::quiet_NaN());  // padding may hold anything
    const Routing plain = gate->forward(batch);
    const Routing routing = gate->forward(padded);
    EXPECT_EQ(routing.statistics, plain.statistics);
    const auto parts = parts_of(routing);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(bit_equal(real_rows(padded, parts[i]), parts_of(plain)[i])) << "part " << i;
    }
    EXPECT_TRUE(bit_equal(routing.aux_loss, plain.aux_loss));
    const at::Tensor padding = padded.is_real.logical_not();
    if (routing.ids.defined()) {
      EXPECT_TRUE(routing.ids.index({padding}).eq(-1).all().item<bool>());
      EXPECT_TRUE(routing.weights.index({padding}).eq(0).all().item<bool>());
    } else {
      EXPECT_TRUE(routing.dispatch.index({padding}).eq(0).all().item<bool>());
      EXPECT_TRUE(routing.combine.index({padding}).eq(0).all().item<bool>());
    }
  }
}

/// Gradients of a loss over `rows`, of parameters and then of x.
std::vector<at::Tensor> gradients_of(Gate& gate, TokenBatch batch, const at::Tensor& rows) {
  batch.x = batch.x.detach().clone().requires_grad_(true);
  gate.zero_grad();
  const Routing routing = gate.forward(batch);
  at::Tensor loss = routing.aux_loss;
  for (const at::Tensor& part : {routing.weights, routing.combine, routing.dispatch}) {
    if (part.defined()) {
      loss = loss + dot_with_fixed(part.index_select(0, rows), 6);
    }
  }
  loss.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : gate.parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  gradients.push_back(batch.x.grad().index_select(0, rows));
  return gradients;
}

TEST(EveryGate, ContainsTokensWhoseLogitsAreNoNumbersAndReportsTheFirst) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 35);
    TokenBatch batch = batch_for(o, {9, 6});
    TokenBatch without = batch;  // the same without the bad tokens, as padding
    without.is_real = at::ones({15}, at::kBool);
    for (const std::int64_t bad : {4, 10}) {
      without.is_real[bad] = false;
    }
    batch.x = batch.x.clone();
    batch.x[4].fill_(std::numeric_limits<double>::quiet_NaN());
    batch.x[10][2] = std::numeric_limits<double>::infinity();
    batch.x[10][3] = -std::numeric_limits<double>::infinity();
    const Routing routing = gate->forward(batch);
    EXPECT_EQ(routing.statistics.num_bad_tokens, 2);
    EXPECT_EQ(routing.statistics.first_bad_token, 4);
    EXPECT_EQ(routing.statistics.num_tokens, 13);
    EXPECT_THROW(require_good_routing(routing.statistics, "layer 5"), Error);
    const Routing expected = gate->forward(without);
    for (std::size_t i = 0; i < parts_of(routing).size(); ++i) {
      EXPECT_TRUE(bit_equal(parts_of(routing)[i], parts_of(expected)[i])) << "part " << i;
    }
    EXPECT_TRUE(bit_equal(routing.aux_loss, expected.aux_loss));
    const at::Tensor good = without.is_real.nonzero().flatten();
    const auto found = gradients_of(*gate, batch, good);
    const auto wanted = gradients_of(*gate, without, good);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(bit_equal(found[i], wanted[i])) << "gradient " << i;
    }
  }
}

TEST(EveryGate, TakesNoTokens) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 36);
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {0, 0}}) {
      TokenBatch batch = batch_for(o, lengths);
      batch.x.requires_grad_(true);
      const Routing routing = gate->forward(batch);
      for (const at::Tensor& part : parts_of(routing)) {
        EXPECT_EQ(part.size(0), 0);
      }
      EXPECT_EQ(routing.aux_loss.item<double>(), 0.0);
      (routing.aux_loss + routing.logits.sum()).backward();
      EXPECT_EQ(gate->named_parameters()["weight"].grad().abs().max().item<double>(), 0.0);
    }
  }
}

TEST(EveryGate, BreaksTiesByTheLowestExpert) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    if (o.kind == GateKind::kSoftMoe || (o.kind == GateKind::kGshard && o.noise)) {
      continue;  // nothing is chosen; noise leaves no ties
    }
    const auto gate = make_gate(o);
    {
      const at::NoGradGuard guard;
      gate->named_parameters()["weight"].fill_(0.25);  // every expert the same
    }
    const Routing routing = gate->forward(batch_for(o, {5}));
    if (o.kind == GateKind::kExpertChoice) {
      EXPECT_TRUE(routing.ids[0].eq(at::arange(8)).all().item<bool>());
      EXPECT_TRUE(routing.ids.narrow(0, 1, 4).eq(-1).all().item<bool>());
    } else {
      EXPECT_TRUE(routing.ids.eq(at::arange(o.top_k)).all().item<bool>());
    }
  }
}

TEST(EveryGate, SaysWhyItRefusesCausalGenerationAndCutSequences) {
  for (const GateOptions& o : every_gate()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 37);
    TokenBatch causal = batch_for(o, {5});
    causal.causal_generation = true;
    TokenBatch cut = batch_for(o, {5});
    cut.sum_shards = [](at::Tensor&) {};
    const bool within = o.kind == GateKind::kExpertChoice || o.kind == GateKind::kSoftMoe;
    EXPECT_EQ(gate->selects_within_sequence(), within);
    for (const TokenBatch& batch : {causal, cut}) {
      try {
        gate->forward(batch);
        EXPECT_FALSE(within);
      } catch (const Error& error) {
        EXPECT_TRUE(within) << error.what();
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        const std::string message = error.what();
        EXPECT_EQ(message.find("layer 5: a gate that selects within a sequence"), 0U) << message;
        EXPECT_NE(message.find(batch.causal_generation ? "causal generation" : "over ranks"),
                  std::string::npos)
            << message;
      }
    }
  }
}

TEST(EveryGate, StaysPreciseWhateverTypeTheModelTakes) {
  for (const GateOptions& o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    const auto gate = random_gate(o, 38);
    const at::Tensor before = gate->named_parameters()["weight"].detach().clone();
    torch::nn::Module& module = *gate;
    module.to(at::kBFloat16);
    module.to(at::kCPU, at::kHalf);
    EXPECT_TRUE(bit_equal(gate->named_parameters()["weight"].detach(), before));
    TokenBatch batch = batch_for(o, {5, 6});
    batch.x = batch.x.to(at::kBFloat16);
    const Routing routing = gate->forward(batch);
    for (const at::Tensor& part : parts_of(routing)) {
      EXPECT_TRUE(part.scalar_type() == before.scalar_type() || part.scalar_type() == at::kInt);
    }
    EXPECT_EQ(routing.aux_loss.scalar_type(), before.scalar_type());
    if (o.kind != GateKind::kSwitch || o.jitter == 0.0) {
      // bf16 tokens are read as they are: the logits of the same numbers in a wider type.
      batch.x = batch.x.to(before.scalar_type());
      EXPECT_LT(max_difference(gate->forward(batch).logits, routing.logits), 1e-5);
    }
  }
}

TEST(EveryGate, RefusesTokensThatDoNotFit) {
  for (const GateOptions& o : every_gate()) {
    const auto gate = make_gate(o);
    const TokenBatch good = batch_for(o, {5});
    for (const auto& change : std::vector<std::function<void(TokenBatch&)>>{
             [](TokenBatch& b) { b.x = b.x.narrow(1, 0, 5); },
             [](TokenBatch& b) { b.x = b.x.to(at::kLong); },
             [](TokenBatch& b) {
               b.sequence_offsets = {0, 4};
             },
             [](TokenBatch& b) {
               b.sequence_offsets = {0, 4, 3, 5};
             },
             [](TokenBatch& b) { b.token_ids = at::arange(4); },
             [](TokenBatch& b) { b.is_real = at::ones({5}, at::kInt); }}) {
      TokenBatch bad = good;
      change(bad);
      EXPECT_THROW(gate->forward(bad), Error) << describe(o);
    }
  }
  GateOptions o = small_gate(GateKind::kTopkSoftmax);
  o.type = RouterType::kFloat32;
  EXPECT_THROW(make_gate(o)->forward(random_batch({3}, o.hidden, 1)), Error) << "fp64 tokens";
}

TEST(EveryGate, TakesManyExpertsAndPicks) {
  for (GateOptions o : every_gate_in_both_types()) {
    SCOPED_TRACE(describe(o));
    o.num_experts = 1024;
    o.top_k = o.top_k == 1 ? 1 : 16;
    if (o.num_groups > 1) {
      o.num_groups = 16;
      o.num_groups_kept = 5;
    }
    const auto gate = random_gate(o, 39);
    const Routing routing = gate->forward(batch_for(o, {3, 4}));
    EXPECT_EQ(routing.statistics.picks_per_expert.size(), 1024U);
    if (routing.ids.defined()) {
      const at::Tensor ids = routing.ids.to(at::kLong);
      EXPECT_TRUE(ids.lt(1024).all().item<bool>());
      const at::Tensor sorted = std::get<0>(at::sort(ids, 1));
      const at::Tensor again = sorted.narrow(1, 1, sorted.size(1) - 1)
                                   .eq(sorted.narrow(1, 0, sorted.size(1) - 1))
                                   .logical_and(sorted.narrow(1, 1, sorted.size(1) - 1).ge(0));
      EXPECT_FALSE(again.any().item<bool>()) << "an expert twice";
    }
  }
}

TEST(EveryGate, StartsFromItsSeedAlone) {
  for (GateOptions o : every_gate()) {
    const at::Tensor weight = make_gate(o)->parameters()[0].detach();
    EXPECT_TRUE(bit_equal(weight, make_gate(o)->parameters()[0].detach()));
    o.noise_stream = 1;
    EXPECT_FALSE(bit_equal(weight, make_gate(o)->parameters()[0].detach()));
    EXPECT_NEAR(weight.std().item<double>(), 0.02, 0.01);
  }
}

}  // namespace
}  // namespace coterie::gates
