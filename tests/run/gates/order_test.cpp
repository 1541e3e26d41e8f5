// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "coterie/base/error.hpp"
#include "gate_case.hpp"

namespace coterie::gates {
namespace {

/// Expert e maps x to tanh(x A_e) + b_e: nonlinear, and not 0 at 0, so that an empty slot shows.
at::Tensor expert(std::int64_t e, const at::Tensor& x) {
  const auto seed = static_cast<std::uint64_t>(e);
  return at::tanh(at::mm(x, random_values({6, 6}, 500 + seed).to(x.scalar_type()))) +
         random_values({1, 6}, 900 + seed).to(x.scalar_type());
}

/// What exchange and kernels compute: each row's weighted sum over its experts.
at::Tensor run_experts(const OrderedRows& rows, std::int64_t num_experts) {
  const at::Tensor x = rows.rows;
  at::Tensor outputs = at::zeros_like(x);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const at::Tensor mine = rows.ids.eq(e);
    const at::Tensor weight =
        at::where(mine, rows.weights, 0.0).sum(1, /*keepdim=*/true).to(x.scalar_type());
    const at::Tensor row = mine.any(1).nonzero().flatten();
    outputs =
        outputs.index_add(0, row, weight.index_select(0, row) * expert(e, x.index_select(0, row)));
  }
  return outputs;
}

struct Pass {
  Routing routing;
  OrderedRows rows;
  at::Tensor y;
};

Pass pass(Gate& gate, const Order& order, const TokenBatch& batch) {
  Pass result;
  result.routing = gate.forward(batch);
  result.rows = order.order(batch, result.routing);
  EXPECT_EQ(result.rows.rows.size(0), result.rows.ids.size(0));
  EXPECT_EQ(result.rows.ids.sizes(), result.rows.weights.sizes());
  EXPECT_EQ(result.rows.ids.scalar_type(), at::kInt);
  const auto E = gate.options().num_experts;
  result.y = order.restore(run_experts(result.rows, E), batch, result.rows);
  return result;
}

OrderOptions order_options(OrderKind kind, const CapacityOptions& capacity = {}) {
  return {kind, "layer 5", capacity};
}

std::vector<CapacityOptions> every_capacity() {
  std::vector<CapacityOptions> all = {{}};
  for (const double factor : {0.3, 1.0, 4.0}) {
    for (const CapacityScope scope : {CapacityScope::kSequence, CapacityScope::kRank}) {
      for (const CapacityKeep keep : {CapacityKeep::kPosition, CapacityKeep::kScore}) {
        all.push_back({factor, 1, CapacityRounding::kUp, scope, keep});
      }
    }
  }
  all.push_back({0.9, 3, CapacityRounding::kDown});
  return all;
}

TEST(Orders, EinsumEqualsIndexInOutputsAndGradients) {
  for (const GateOptions& o : every_gate()) {
    if (o.kind == GateKind::kSoftMoe) {
      continue;
    }
    for (const CapacityOptions& capacity : every_capacity()) {
      if (o.kind == GateKind::kExpertChoice && capacity.factor > 0.0) {
        continue;
      }
      SCOPED_TRACE(describe(o) + ", " + to_json(order_options({}, capacity)).dump());
      const auto gate = random_gate(o, 41);
      TokenBatch batch = pad_left(random_batch({9, 0, 1, 6}, o.hidden, 42), 2);
      std::vector<std::vector<at::Tensor>> results;
      std::vector<RoutingStatistics> statistics;
      for (const OrderKind kind : {OrderKind::kIndex, OrderKind::kEinsum}) {
        batch.x = batch.x.detach().clone().requires_grad_(true);
        gate->zero_grad();
        const Pass done = pass(*gate, *make_order(order_options(kind, capacity)), batch);
        dot_with_fixed(done.y, 43).backward();
        results.push_back({done.y, batch.x.grad(), gate->named_parameters()["weight"].grad()});
        statistics.push_back(done.rows.statistics);
      }
      EXPECT_EQ(statistics[0], statistics[1]);
      for (std::size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_LT(max_difference(results[0][i], results[1][i]), 1e-12) << "part " << i;
      }
    }
  }
}

TEST(Orders, OutputsEqualTheSumOverKeptPicks) {
  const GateOptions o = small_gate(GateKind::kTopkSoftmax, 8, 2);
  const auto gate = random_gate(o, 44);
  const TokenBatch batch = random_batch({9, 5}, o.hidden, 45);
  const auto order = make_order(order_options(OrderKind::kIndex));
  const Pass done = pass(*gate, *order, batch);
  for (std::int64_t t = 0; t < 14; ++t) {
    at::Tensor y = at::zeros({1, 6}, at::kDouble);
    for (std::int64_t i = 0; i < 2; ++i) {
      y = y + done.routing.weights[t][i] *
                  expert(done.routing.ids[t][i].item<std::int64_t>(), batch.x.narrow(0, t, 1));
    }
    EXPECT_LT(max_difference(done.y.narrow(0, t, 1), y), 1e-13);
  }
}

TEST(Orders, SlotsEqualTheFormulaOfSoftMoe) {
  GateOptions o = small_gate(GateKind::kSoftMoe, 3, 1);
  o.slots_per_expert = 2;
  const auto gate = random_gate(o, 46);
  const TokenBatch batch = random_batch({4, 0, 3}, o.hidden, 47);
  const Pass done = pass(*gate, *make_order(order_options(OrderKind::kSlots)), batch);
  EXPECT_EQ(done.rows.rows.size(0), 12);
  for (const auto& [begin, n] : {std::pair{0, 4}, {4, 3}}) {
    const at::Tensor x = batch.x.narrow(0, begin, n);
    const at::Tensor logits = at::mm(x, gate->parameters()[0].t());
    const at::Tensor slots = at::mm(at::softmax(logits, 0).t(), x);
    std::vector<at::Tensor> outputs;
    for (std::int64_t e = 0; e < 3; ++e) {
      outputs.push_back(expert(e, slots.narrow(0, 2 * e, 2)));
    }
    const at::Tensor y = at::mm(at::softmax(logits, 1), at::cat(outputs));
    EXPECT_LT(max_difference(done.y.narrow(0, begin, n), y), 1e-12);
  }
}

/// The order that fits a gate.
OrderKind order_for(const GateOptions& o, OrderKind wanted) {
  return o.kind == GateKind::kSoftMoe ? OrderKind::kSlots : wanted;
}

TEST(Orders, GradientsEqualFiniteDifferences) {
  for (const GateOptions& o : every_gate()) {
    for (const OrderKind wanted : {OrderKind::kIndex, OrderKind::kEinsum}) {
      CapacityOptions capacity;
      const bool picks = o.kind != GateKind::kSoftMoe && o.kind != GateKind::kExpertChoice;
      capacity.factor = picks ? 0.8 : 0.0;
      SCOPED_TRACE(describe(o) + ", " + name_of(wanted));
      const auto gate = random_gate(o, 48);
      TokenBatch batch = random_batch({3, 2}, o.hidden, 49);
      batch.training = true;
      batch.x.requires_grad_(true);
      const auto order = make_order(order_options(order_for(o, wanted), capacity));
      std::vector<at::Tensor> inputs = gate->parameters();
      inputs.push_back(batch.x);
      EXPECT_LT(
          gradient_error(inputs, [&] { return dot_with_fixed(pass(*gate, *order, batch).y, 50); }),
          1e-7);
    }
  }
}

TEST(Orders, DoNotSeePaddingNorOtherSequences) {
  for (const GateOptions& o : every_gate()) {
    for (const OrderKind wanted : {OrderKind::kIndex, OrderKind::kEinsum}) {
      CapacityOptions capacity;
      const bool picks = o.kind != GateKind::kSoftMoe && o.kind != GateKind::kExpertChoice;
      capacity.factor = picks ? 0.7 : 0.0;
      SCOPED_TRACE(describe(o) + ", " + name_of(wanted));
      const auto gate = random_gate(o, 51);
      const auto order = make_order(order_options(order_for(o, wanted), capacity));
      const TokenBatch batch = random_batch({9, 6, 0, 12}, o.hidden, 52);
      const Pass plain = pass(*gate, *order, batch);
      TokenBatch padded = pad_left(batch, 5);
      padded.x[0].fill_(std::numeric_limits<double>::quiet_NaN());
      const Routing routing = gate->forward(padded);
      const OrderedRows rows = order->order(padded, routing);
      EXPECT_EQ(rows.statistics, plain.rows.statistics);
      if (wanted == OrderKind::kEinsum || o.kind == GateKind::kSoftMoe) {
        EXPECT_TRUE(bit_equal(rows.rows, plain.rows.rows)) << "padding takes slots";
        const at::Tensor y = order->restore(run_experts(rows, 8), padded, rows);
        EXPECT_LT(max_difference(real_rows(padded, y), plain.y), 1e-13);
      } else {
        EXPECT_TRUE(bit_equal(real_rows(padded, rows.ids), plain.rows.ids));
      }
      for (std::int64_t s = 0; s < 4; ++s) {
        const Pass one = pass(*gate, *order, take_sequences(batch, s, s + 1));
        const std::int64_t begin = batch.sequence_begin(s);
        EXPECT_LT(max_difference(plain.y.narrow(0, begin, one.y.size(0)), one.y), 1e-13);
      }
    }
  }
}

TEST(Orders, TakeNoTokens) {
  for (const GateOptions& o : every_gate()) {
    for (const OrderKind wanted : {OrderKind::kIndex, OrderKind::kEinsum}) {
      SCOPED_TRACE(describe(o) + ", " + name_of(wanted));
      const auto gate = random_gate(o, 53);
      TokenBatch batch = random_batch({0, 0}, o.hidden, 54);
      batch.x.requires_grad_(true);
      const Pass done = pass(*gate, *make_order(order_options(order_for(o, wanted))), batch);
      EXPECT_EQ(done.y.sizes(), (std::vector<std::int64_t>{0, 6}));
      EXPECT_TRUE(done.y.requires_grad()) << "backward would skip this rank's collectives";
      done.y.sum().backward();
    }
  }
}

TEST(Orders, RefuseWhatDoesNotFit) {
  GateOptions o = small_gate(GateKind::kSoftMoe, 4, 1);
  const TokenBatch batch = random_batch({5}, o.hidden, 1);
  const Routing soft = make_gate(o)->forward(batch);
  const Routing hard = make_gate(small_gate(GateKind::kTopkSoftmax))->forward(batch);
  for (const OrderKind kind : {OrderKind::kIndex, OrderKind::kEinsum}) {
    EXPECT_THROW((void)make_order(order_options(kind))->order(batch, soft), Error);
  }
  EXPECT_THROW((void)make_order(order_options(OrderKind::kSlots))->order(batch, hard), Error);
  o.kind = GateKind::kExpertChoice;
  const Routing chosen = make_gate(o)->forward(batch);
  const auto limited = make_order(order_options(OrderKind::kIndex, {1.0}));
  EXPECT_THROW((void)limited->order(batch, chosen), Error);
  TokenBatch causal = batch;
  causal.causal_generation = true;
  EXPECT_THROW((void)limited->order(causal, hard), Error);
  EXPECT_NO_THROW((void)make_order(order_options(OrderKind::kIndex))->order(causal, hard));
  TokenBatch cut = batch;
  cut.sum_shards = [](at::Tensor&) {};
  EXPECT_THROW((void)limited->order(cut, hard), Error);
  const auto by_rank = make_order(
      order_options(OrderKind::kIndex, {1.0, 1, CapacityRounding::kUp, CapacityScope::kRank}));
  EXPECT_NO_THROW((void)by_rank->order(cut, hard));
  EXPECT_THROW((void)by_rank->order(random_batch({4}, 6, 1), hard), Error);
}

TEST(Orders, KeepTheTypeOfTheTokens) {
  for (GateOptions o : every_gate()) {
    for (const OrderKind wanted : {OrderKind::kIndex, OrderKind::kEinsum}) {
      SCOPED_TRACE(describe(o) + ", " + name_of(wanted));
      o.type = RouterType::kFloat32;
      TokenBatch batch = random_batch({5, 3}, o.hidden, 49);
      batch.x = batch.x.to(at::kBFloat16).requires_grad_(true);
      const auto gate = random_gate(o, 55);
      const Pass done = pass(*gate, *make_order(order_options(order_for(o, wanted))), batch);
      EXPECT_EQ(done.rows.rows.scalar_type(), at::kBFloat16);
      EXPECT_EQ(done.rows.weights.scalar_type(), at::kFloat);
      EXPECT_EQ(done.y.scalar_type(), at::kBFloat16);
      done.y.sum().backward();
      EXPECT_TRUE(at::isfinite(batch.x.grad()).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace coterie::gates
