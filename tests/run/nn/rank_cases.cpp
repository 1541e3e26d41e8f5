// SPDX-License-Identifier: Apache-2.0
#include "tests/run/nn/rank_cases.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <mutex>
#include <numeric>

#include "coterie/base/random.hpp"

namespace coterie::nn {
namespace {

constexpr std::int64_t kHidden = 10;
constexpr std::int64_t kIntermediate = 12;
constexpr std::int32_t kNumExperts = 7;

at::Tensor random_tensor(std::uint64_t seed, std::int64_t rows, std::int64_t columns,
                         at::ScalarType type) {
  Random random(seed, 5);
  at::Tensor values = at::empty({rows, columns}, at::kDouble);
  auto* data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    data[i] = random.normal();
  }
  return values.to(type);
}

/// An expert of a shape that no kernel knows.
struct ToyExpertImpl final : torch::nn::Module {
  ToyExpertImpl(std::int64_t expert, at::ScalarType type) {
    const auto seed = 300 + 2 * static_cast<std::uint64_t>(expert);
    in = register_parameter("in", random_tensor(seed, kIntermediate, kHidden, type) * 0.4);
    out = register_parameter("out", random_tensor(seed + 1, kHidden, kIntermediate, type) * 0.4);
  }
  at::Tensor forward(const at::Tensor& rows) {
    return at::linear(at::tanh(at::linear(rows, in)), out) + at::sin(rows);
  }
  at::Tensor in;
  at::Tensor out;
};
TORCH_MODULE(ToyExpert);

/// The part of a parameter's gradient that belongs to some experts and one shard.
at::Tensor part_of(const std::string& name, const at::Tensor& whole,
                   const std::vector<std::int32_t>& experts, ExpertKind kind, int shard,
                   int num_shards) {
  if (kind == ExpertKind::kCustom) {
    return whole;
  }
  const std::vector<std::int64_t> ids(experts.begin(), experts.end());
  const at::Tensor held = whole.index_select(0, at::tensor(ids, at::kLong));
  const auto cut = [&](const at::Tensor& tensor, std::int64_t dim) {
    return tensor.chunk(num_shards, dim)[static_cast<std::size_t>(shard)];
  };
  if (name == "experts.down_proj") {
    return cut(held, 2);
  }
  if (name == "experts.down_bias") {
    return held;
  }
  if (kind == ExpertKind::kSwiGlu) {
    const auto halves = held.chunk(2, 1);
    return at::cat({cut(halves[0], 1), cut(halves[1], 1)}, 1);
  }
  return cut(held, 1);
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance,
                  const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  if (got.numel() == 0) {
    return;
  }
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  EXPECT_LT((got.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>() / scale,
            tolerance)
      << what;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
}

}  // namespace

RankCase::RankCase() {
  gate.hidden = kHidden;
  gate.num_experts = kNumExperts;
  gate.top_k = 3;
  gate.type = gates::RouterType::kFloat64;
  gate.initializer_range = 0.5;
  gate.balance.load_balance = 0.1;
}

MoELayerOptions layer_options(const RankCase& made) {
  MoELayerOptions options;
  options.name = "layer 3";
  options.hidden = kHidden;
  options.intermediate = kIntermediate;
  options.num_experts = made.gate.num_experts;
  options.expert_kind = made.kind;
  options.expert_bias = made.kind == ExpertKind::kGelu || made.kind == ExpertKind::kGeluTanh;
  if (made.kind == ExpertKind::kCustom) {
    options.expert_factory = [type = made.type](std::int64_t expert) {
      return torch::nn::AnyModule(ToyExpert(expert, type));
    };
  }
  options.gate = gates::make_gate(made.gate);
  options.order = gates::make_order(made.order);
  options.exchange.poison_buffers = true;
  options.type = made.type;
  options.initializer_range = 0.4;
  options.initializer_seed = 11;
  if (made.change_all) {
    made.change_all(options);
  }
  return options;
}

gates::TokenBatch batch_of(const RankCase& made, int rank) {
  const std::int64_t count = made.num_tokens.at(static_cast<std::size_t>(rank));
  gates::TokenBatch batch;
  batch.x = random_tensor(100 + static_cast<std::uint64_t>(rank), count, kHidden, made.type)
                .requires_grad_(true);
  batch.sequence_offsets = {0, count / 3, count / 3, count};
  if (count > 4) {  // some padding
    batch.is_real = at::ones({count}, at::kBool);
    batch.is_real[count - 2].fill_(false);
  }
  batch.num_step_sequences = 2 * made.num_ranks();
  batch.token_ids = at::arange(count, at::kLong) + 1000 * rank;
  batch.training = true;
  return batch;
}

at::Tensor direction_of(const RankCase& made, int rank) {
  return random_tensor(200 + static_cast<std::uint64_t>(rank),
                       made.num_tokens.at(static_cast<std::size_t>(rank)), kHidden, made.type);
}

Outcome run_layer(MoELayer& layer, const gates::TokenBatch& batch, const at::Tensor& direction,
                  std::int64_t num_backwards) {
  at::set_num_threads(1);  // of this thread; ranks are threads already
  const MoEResult result = layer->forward(batch);
  at::Tensor loss = (result.y * direction).sum();
  if (result.aux_loss.defined()) {
    loss = loss + result.aux_loss;
  }
  for (std::int64_t i = 0; i < num_backwards; ++i) {
    layer->zero_grad();
    batch.x.mutable_grad() = at::Tensor();
    loss.backward({}, i + 1 < num_backwards);
  }
  Outcome outcome;
  outcome.y = result.y.detach();
  outcome.grad_x = batch.x.grad();
  for (const auto& parameter : layer->named_parameters()) {
    outcome.gradients[parameter.key()] = parameter.value().grad();
  }
  outcome.aux_loss = result.aux_loss.defined() ? result.aux_loss.item<double>() : 0.0;
  outcome.statistics = result.statistics;
  outcome.expert_ids = layer->experts()->expert_ids();
  return outcome;
}

Outcome run_rank_of(const RankCase& made, comm::Communicator& world) {
  // Ranks of a shard group are neighbours.
  const auto expert = world.split(world.rank() % made.num_shards);
  const auto shard = world.split(world.rank() / made.num_shards);
  MoELayerOptions options = layer_options(made);
  options.expert_group = expert.get();
  options.shard_group = shard.get();
  if (made.change) {
    made.change(options);
  }
  MoELayer layer(options);
  return run_layer(layer, batch_of(made, world.rank()), direction_of(made, world.rank()),
                   made.num_backwards);
}

std::vector<Outcome> run_ranks_of(const RankCase& made) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(made.num_ranks()));
  comm::run_ranks(
      made.num_ranks(),
      [&](comm::Communicator& world) {
        outcomes[static_cast<std::size_t>(world.rank())] = run_rank_of(made, world);
      },
      std::chrono::seconds(60));
  return outcomes;
}

std::vector<Outcome> run_reference_of(const RankCase& made) {
  MoELayerOptions options = layer_options(made);
  options.path = LayerPath::kReference;
  MoELayer layer(options);
  std::vector<Outcome> outcomes;
  std::map<std::string, at::Tensor> totals;
  for (int rank = 0; rank < made.num_ranks(); ++rank) {
    outcomes.push_back(run_layer(layer, batch_of(made, rank), direction_of(made, rank)));
    for (const auto& parameter : layer->named_parameters()) {
      const at::Tensor gradient = parameter.value().grad().defined()
                                      ? parameter.value().grad().clone()
                                      : at::zeros_like(parameter.value());
      at::Tensor& total = totals[parameter.key()];
      total = total.defined() ? total + gradient : gradient;
    }
  }
  for (Outcome& outcome : outcomes) {
    outcome.gradients = totals;
  }
  return outcomes;
}

void expect_equal(const RankCase& made, const std::vector<Outcome>& ranks,
                  const std::vector<Outcome>& reference, double tolerance) {
  std::map<std::string, at::Tensor> gate_totals;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string at_rank = "rank " + std::to_string(rank) + ": ";
    const Outcome& got = ranks[rank];
    expect_close(got.y, reference[rank].y, tolerance, at_rank + "y");
    expect_close(got.grad_x, reference[rank].grad_x, tolerance, at_rank + "dL/dx");
    EXPECT_NEAR(got.aux_loss, reference[rank].aux_loss, 1e-12) << at_rank << "aux_loss";
    EXPECT_EQ(got.statistics.routing, reference[rank].statistics.routing) << at_rank;
    for (const auto& [name, gradient] : got.gradients) {
      if (name.starts_with("gate.")) {
        const at::Tensor mine =
            gradient.defined() ? gradient : at::zeros_like(reference[0].gradients.at(name));
        at::Tensor& total = gate_totals[name];
        total = total.defined() ? total + mine : mine;
        continue;
      }
      const at::Tensor wanted =
          part_of(name, reference[rank].gradients.at(name), got.expert_ids, made.kind,
                  static_cast<int>(rank) % made.num_shards, made.num_shards);
      expect_close(gradient, wanted, tolerance, at_rank + name);
    }
  }
  for (const auto& [name, total] : gate_totals) {
    expect_close(total, reference[0].gradients.at(name), tolerance, name);
  }
}

bool same_bits(const Outcome& a, const Outcome& b) {
  if (!same(a.y, b.y) || !same(a.grad_x, b.grad_x) || a.gradients.size() != b.gradients.size()) {
    return false;
  }
  for (const auto& [name, gradient] : a.gradients) {
    if (!same(gradient, b.gradients.at(name))) {
      return false;
    }
  }
  return true;
}

}  // namespace coterie::nn
