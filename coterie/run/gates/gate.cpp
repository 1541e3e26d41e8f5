// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/gate.hpp"

#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/gates/balance_loss.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

bool is_narrow(torch::Dtype type) {
  return type != at::kFloat && type != at::kDouble;
}

GateOptions checked(GateOptions options) {
  check_gate_options(options);
  return options;
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace

Gate::Gate(GateOptions options)
    : torch::nn::Module("Gate"), options_(checked(std::move(options))) {}

void Gate::update_selection_bias(std::span<const std::int64_t> /*step_picks*/) {}

void Gate::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  if (is_narrow(dtype)) {
    to(device, non_blocking);
  } else {
    torch::nn::Module::to(device, dtype, non_blocking);
  }
}

void Gate::to(torch::Dtype dtype, bool non_blocking) {
  if (!is_narrow(dtype)) {
    torch::nn::Module::to(dtype, non_blocking);
  }
}

void Gate::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
}

at::ScalarType Gate::type() const {
  return options_.type == RouterType::kFloat64 ? at::kDouble : at::kFloat;
}

void Gate::detach_if_frozen(Routing& routing) const {
  for (const at::Tensor& parameter : parameters()) {
    if (parameter.requires_grad()) {
      return;
    }
  }
  if (routing.aux_loss.defined()) {
    routing.aux_loss = routing.aux_loss.detach();
  }
}

at::Tensor Gate::new_weight(const std::string& name, std::int64_t rows, std::int64_t columns) {
  Random random(options_.initializer_seed ^ hash_of(name), options_.noise_stream);
  at::Tensor values = at::empty({rows, columns}, at::kDouble);
  double* const data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    data[i] = options_.initializer_range * random.normal();
  }
  return register_parameter(name, values.to(type()));
}

void Gate::set_pruner(std::shared_ptr<const pruning::LayerPruner> pruner) {
  if (pruner != nullptr) {
    fail(ErrorCode::kUnsupported, options_.name, ": a gate of kind ", name_of(options_.kind),
         " cannot be pruned: its tokens do not pick experts");
  }
}

void PickingGate::set_pruner(std::shared_ptr<const pruning::LayerPruner> pruner) {
  if (selects_within_sequence()) {
    Gate::set_pruner(std::move(pruner));
    return;
  }
  COTERIE_REQUIRE(pruner == nullptr || pruner->limit().num_experts() == options().num_experts,
                  options().name, ": the pruning policy is for ", pruner->limit().num_experts(),
                  " experts, the gate has ", options().num_experts);
  pruner_ = std::move(pruner);
}

Routing PickingGate::forward(const TokenBatch& batch) {
  const GateOptions& o = options();
  check_token_batch(batch, o.hidden, o.name);
  if (selects_within_sequence()) {
    require_whole_sequences(batch, o.name + ": a gate that selects within a sequence");
  }
  Routing routing;
  const at::Tensor raw = logits(batch);
  COTERIE_CHECK(raw.dim() == 2 && raw.size(0) == batch.num_tokens() && raw.size(1) == o.num_experts,
                o.name, ": logits have shape ", raw.sizes());
  // Pruning waits for the device anyway, so counts can be had at once.
  const bool on_gpu = raw.is_cuda() && pruner_ == nullptr;
  routing.usable =
      on_gpu ? usable_tokens(batch, raw) : usable_tokens(batch, raw, routing.statistics);
  routing.logits = at::where(routing.usable.unsqueeze(1), raw, 0.0);
  const Choice choice = choose(batch, routing.logits, routing.usable);
  const at::Tensor ids =
      at::where(routing.usable.unsqueeze(1), choice.ids, at::Scalar(std::int64_t{-1}));
  routing.ids = ids.to(at::kInt);
  routing.top_k = selects_within_sequence() ? 0 : o.top_k;
  routing.weights = at::where(ids.ge(0), choice.weights, 0.0);
  if (on_gpu) {
    routing.statistics.picks_per_expert.assign(static_cast<std::size_t>(o.num_experts), 0);
    routing.counts = counts_on_gpu(batch, routing, o.num_experts);
  } else {
    count_picks(routing.ids, o.num_experts, routing.statistics);
  }
  routing.aux_loss = balance_loss(
      batch, {routing.ids, routing.logits, choice.probabilities, routing.usable, o.num_experts},
      o.balance);
  if (pruner_ != nullptr) {
    prune_routing(*pruner_, choice.scores, {o.name, execution()}, routing);
  }
  detach_if_frozen(routing);
  return routing;
}

}  // namespace coterie::gates
