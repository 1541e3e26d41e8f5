// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/prune_picks.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <span>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// The values of one tensor with the gradient of another.
struct StraightThrough final : torch::autograd::Function<StraightThrough> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& values,
                            const at::Tensor& /*formula*/) {
    return values.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::Tensor(), gradients[0]};
  }
};

/// What the policy made of the picks; on the CPU.
struct Decision {
  at::Tensor ids;      ///< int32 [T, k]
  at::Tensor weights;  ///< fp32 [T, k]; read for changed tokens alone
  at::Tensor changed;  ///< bool [T]
};

template <typename T>
std::span<T> row_of(T* data, std::int64_t row, std::int64_t width) {
  return {data + row * width, static_cast<std::size_t>(width)};
}

void make_sum_one(std::span<float> weights) {
  double sum = 0;
  for (const float weight : weights) {
    sum += static_cast<double>(weight);
  }
  for (float& weight : weights) {
    weight = sum > 0 ? static_cast<float>(static_cast<double>(weight) / sum) : 0.0F;
  }
}

at::Tensor plain(const at::Tensor& scores) {
  return scores.detach().to(at::kCPU, at::kFloat).contiguous();
}

Decision decide(const pruning::LayerPruner& pruner, const GateScores& scores, const at::Tensor& ids,
                const kernels::Execution& execution) {
  constexpr std::int64_t kBlock = 64;  // tokens a task
  const at::Tensor selection = plain(scores.selection);
  const at::Tensor all = plain(scores.weights);
  const std::int64_t k = ids.size(1);
  const std::int64_t num_experts = all.size(1);
  Decision made;
  made.ids = ids.to(at::kCPU).contiguous().clone();
  made.weights = at::zeros(made.ids.sizes(), at::kFloat);
  made.changed = at::zeros({ids.size(0)}, at::kBool);
  const float* const selection_data = selection.const_data_ptr<float>();
  const float* const all_data = all.const_data_ptr<float>();
  auto* const id_data = made.ids.mutable_data_ptr<std::int32_t>();
  auto* const weight_data = made.weights.mutable_data_ptr<float>();
  bool* const changed = made.changed.mutable_data_ptr<bool>();
  execution.pool().run_ranges(ids.size(0), kBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const auto picks = row_of(id_data, t, k);
      const auto weights = row_of(weight_data, t, k);
      const auto scored = row_of(all_data, t, num_experts);
      for (std::size_t i = 0; i < picks.size(); ++i) {
        weights[i] = picks[i] >= 0 ? scored[static_cast<std::size_t>(picks[i])] : 0.0F;
      }
      changed[t] = pruner.prune({row_of(selection_data, t, num_experts), scored}, picks, weights);
      if (changed[t] && scores.sum_to_one) {
        make_sum_one(weights);
      }
    }
  });
  return made;
}

/// Scores [T, k] of picks, 0 where there is none; differentiable.
at::Tensor scores_of(const at::Tensor& all, const at::Tensor& ids) {
  const at::Tensor places = ids.clamp_min(0).to(at::kLong);
  return at::where(ids.ge(0), all.gather(1, places), 0.0);
}

/// 1 / sum of each row, 0 where that is 0; differentiable.
at::Tensor reciprocal_sum(const at::Tensor& rows) {
  const at::Tensor sum = rows.sum(1, /*keepdim=*/true);
  return at::where(sum.gt(0), at::where(sum.gt(0), sum, 1.0).reciprocal(), 0.0);
}

/// The weights as formulas that autograd follows.
at::Tensor formula(const pruning::LayerPruner& pruner, const GateScores& scores,
                   const at::Tensor& before, const at::Tensor& after) {
  at::Tensor weights = scores_of(scores.weights, after);
  if (scores.sum_to_one) {
    weights = weights * reciprocal_sum(weights);
  } else if (pruner.weights() == pruning::Weights::kKeepSum) {
    const at::Tensor sum_before = scores_of(scores.weights, before).sum(1, /*keepdim=*/true);
    weights = weights * (sum_before * reciprocal_sum(weights));
  }
  return weights;
}

}  // namespace

void prune_routing(const pruning::LayerPruner& pruner, const GateScores& scores,
                   const PruneContext& context, Routing& routing) {
  if (!scores.selection.defined() || !scores.weights.defined()) {
    fail(ErrorCode::kUnsupported, context.name,
         ": pruning needs a gate that tells its scores (PickingGate::Choice::scores)");
  }
  const Decision made = decide(pruner, scores, routing.ids, context.execution);
  const at::Device device = routing.ids.device();
  const at::Tensor ids = made.ids.to(device);
  const at::Tensor changed = made.changed.to(device).unsqueeze(1);
  at::Tensor weights = formula(pruner, scores, routing.ids, ids);
  if (weights.scalar_type() == at::kFloat) {
    weights = StraightThrough::apply(made.weights.to(device), weights);
  }
  if (scores.scaling != 1.0) {
    weights = weights * scores.scaling;
  }
  routing.unpruned_ids = routing.ids;
  routing.ids = ids;
  routing.weights = at::where(changed, weights, routing.weights);
  routing.statistics.unpruned_picks_per_expert = std::move(routing.statistics.picks_per_expert);
  routing.statistics.num_pruned_tokens = made.changed.sum().item<std::int64_t>();
  count_picks(routing.ids, scores.weights.size(1), routing.statistics);
}

}  // namespace coterie::gates
