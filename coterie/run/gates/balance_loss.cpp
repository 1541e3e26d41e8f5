// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/balance_loss.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Adds up rows [T, N] by their sequence; the gradient of a row is that of its sequence.
struct SumRows : torch::autograd::Function<SumRows> {
  static Variable forward(AutogradContext* context, const Variable& values,
                          const Variable& sequence_of_token, std::int64_t num_sequences) {
    context->save_for_backward({sequence_of_token});
    context->saved_data["type"] = static_cast<std::int64_t>(values.scalar_type());
    const at::Tensor rows = values.detach().to(at::kDouble).contiguous();
    const at::Tensor places = sequence_of_token.to(at::kCPU);
    const at::Tensor on_cpu = rows.to(at::kCPU);
    const std::int64_t N = rows.size(1);
    at::Tensor sums = at::zeros({num_sequences, N}, on_cpu.options());
    const double* const from = on_cpu.const_data_ptr<double>();
    const std::int64_t* const place = places.const_data_ptr<std::int64_t>();
    double* const to = sums.mutable_data_ptr<double>();
    for (std::int64_t t = 0; t < rows.size(0); ++t) {
      for (std::int64_t n = 0; place[t] >= 0 && n < N; ++n) {
        to[place[t] * N + n] += from[t * N + n];
      }
    }
    return sums.to(values.device());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor places = context->get_saved_variables()[0].to(gradients[0].device());
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    // Row S of zeros stands for tokens of no sequence.
    const at::Tensor rows = at::constant_pad_nd(gradients[0], {0, 0, 0, 1});
    const at::Tensor from = at::where(places.ge(0), places, gradients[0].size(0));
    return {rows.index_select(0, from).to(type), Variable(), Variable()};
  }
};

/// int64 [T] on the CPU: the sequence of each usable token, else -1.
at::Tensor sequence_of_token(const TokenBatch& batch, const at::Tensor& usable) {
  at::Tensor result = at::full({batch.num_tokens()}, -1, at::kLong);
  std::int64_t* const place = result.mutable_data_ptr<std::int64_t>();
  const auto tokens = usable_by_sequence(batch, usable);
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    for (const std::int64_t t : tokens[s]) {
      place[t] = static_cast<std::int64_t>(s);
    }
  }
  return result;
}

/// fp64 [S, 1 + E] on the CPU: usable tokens, then picks of each expert. Whole numbers, so exact.
at::Tensor count_by_sequence(const TokenBatch& batch, const BalanceInputs& inputs,
                             const at::Tensor& places) {
  const std::int64_t E = inputs.num_experts;
  at::Tensor counts = at::zeros({batch.num_sequences(), 1 + E}, at::kDouble);
  const at::Tensor ids = inputs.ids.defined() ? inputs.ids.to(at::kCPU).contiguous()
                                              : at::empty({batch.num_tokens(), 0}, at::kInt);
  const std::int32_t* const id = ids.const_data_ptr<std::int32_t>();
  const std::int64_t* const place = places.const_data_ptr<std::int64_t>();
  double* const count = counts.mutable_data_ptr<double>();
  const std::int64_t k = ids.size(1);
  for (std::int64_t t = 0; t < batch.num_tokens(); ++t) {
    if (place[t] < 0) {
      continue;
    }
    double* const row = count + place[t] * (1 + E);
    row[0] += 1;
    for (std::int64_t i = 0; i < k; ++i) {
      if (id[t * k + i] >= 0) {
        row[1 + id[t * k + i]] += 1;
      }
    }
  }
  return counts;
}

/// [S, T] fp32 on the GPU: 1 where a usable token belongs to a sequence.
at::Tensor membership_on_gpu(const TokenBatch& batch, const at::Tensor& usable) {
  std::vector<std::int64_t> ends;
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    ends.push_back(batch.sequence_begin(s + 1));
  }
  const at::Tensor last = at::tensor(ends, at::kLong).to(usable.device(), /*non_blocking=*/true);
  const at::Tensor place = at::arange(batch.num_tokens(), last.options()).unsqueeze(0);
  const at::Tensor before_end = place.lt(last.unsqueeze(1));  // [S, T]
  const at::Tensor begins =
      at::cat({at::zeros({1}, last.options()), last.narrow(0, 0, last.numel() - 1)});
  return (before_end & place.ge(begins.unsqueeze(1)) & usable.unsqueeze(0)).to(at::kFloat);
}

/// balance_loss where the logits are on a GPU: the same sums as products with the membership of
/// tokens, in fp32, without waiting for the GPU.
at::Tensor balance_loss_on_gpu(const TokenBatch& batch, const BalanceInputs& inputs,
                               const BalanceOptions& options) {
  const auto type = inputs.logits.scalar_type();
  const auto E = static_cast<double>(inputs.num_experts);
  const at::Tensor member = membership_on_gpu(batch, inputs.usable).to(type);
  const at::Tensor ids = inputs.ids.to(at::kLong);
  const at::Tensor chosen = at::zeros(inputs.logits.sizes(), member.options())
                                .scatter_add(1, ids.clamp_min(0), ids.ge(0).to(type));  // [T, E]
  at::Tensor counts =
      at::mm(member, at::cat({at::ones({chosen.size(0), 1}, chosen.options()), chosen}, 1));
  if (batch.sum_shards) {
    batch.sum_shards(counts);
  }
  at::Tensor tokens = counts.narrow(1, 0, 1);
  const at::Tensor num_here = tokens.gt(0).sum().to(type);
  at::Tensor share =
      batch.num_step_sequences > 0
          ? at::full({}, 1.0 / static_cast<double>(batch.num_step_sequences), member.options())
          : num_here.clamp_min(1.0).reciprocal();
  const bool by_batch = options.scope == BalanceScope::kBatch;
  if (by_batch) {
    counts = counts.sum(0, /*keepdim=*/true);
    tokens = counts.narrow(1, 0, 1);
    share = share * num_here;
  }
  const auto sums_of = [&](const at::Tensor& values) {
    const at::Tensor sums = at::mm(member, values);
    return by_batch ? sums.sum(0, /*keepdim=*/true) : sums;
  };
  const at::Tensor per_token = tokens.clamp_min(1.0).reciprocal();
  at::Tensor loss = at::zeros({}, member.options());
  if (options.load_balance != 0.0) {
    const at::Tensor fractions = counts.narrow(1, 1, inputs.num_experts) * per_token;
    loss = loss + (fractions * (sums_of(inputs.probabilities) * per_token)).sum() * share *
                      (options.load_balance * E);
  }
  if (options.z_loss != 0.0) {
    const at::Tensor z = row_log_sum_exp(inputs.logits);
    loss = loss + (sums_of(z * z) * per_token).sum() * share * options.z_loss;
  }
  return loss;
}

}  // namespace

at::Tensor sum_by_sequence(const TokenBatch& batch, const at::Tensor& values,
                           const at::Tensor& usable) {
  return SumRows::apply(values, sequence_of_token(batch, usable), batch.num_sequences());
}

at::Tensor balance_loss(const TokenBatch& batch, const BalanceInputs& inputs,
                        const BalanceOptions& options) {
  if (options.load_balance == 0.0 && options.z_loss == 0.0) {
    return {};
  }
  if (inputs.logits.is_cuda() && inputs.ids.defined()) {
    return balance_loss_on_gpu(batch, inputs, options);
  }
  const auto E = static_cast<double>(inputs.num_experts);
  const at::Tensor places = sequence_of_token(batch, inputs.usable);
  at::Tensor counts = count_by_sequence(batch, inputs, places);
  if (batch.sum_shards) {
    batch.sum_shards(counts);
  }
  const at::Device device = inputs.logits.device();
  at::Tensor tokens = counts.narrow(1, 0, 1);  // [S, 1]
  const double num_here = tokens.gt(0).sum().item<double>();
  const double num_step = batch.num_step_sequences > 0
                              ? static_cast<double>(batch.num_step_sequences)
                              : std::max(num_here, 1.0);
  double share = 1.0 / num_step;
  const bool by_batch = options.scope == BalanceScope::kBatch;
  if (by_batch) {
    counts = counts.sum(0, /*keepdim=*/true);
    tokens = counts.narrow(1, 0, 1);
    share = num_here / num_step;
  }
  const auto sums_of = [&](const at::Tensor& values) {
    const at::Tensor sums = SumRows::apply(values, places, batch.num_sequences());
    return by_batch ? sums.sum(0, /*keepdim=*/true) : sums;
  };
  const at::Tensor per_token = tokens.clamp_min(1.0).reciprocal().to(device);  // 0 tokens add 0
  at::Tensor loss = at::zeros({}, inputs.logits.options().dtype(at::kDouble));
  if (options.load_balance != 0.0) {
    const at::Tensor fractions =
        counts.narrow(1, 1, inputs.num_experts).to(device) * per_token;  // c_si / n_s
    loss = loss + (options.load_balance * share * E) *
                      (fractions * (sums_of(inputs.probabilities) * per_token)).sum();
  }
  if (options.z_loss != 0.0) {
    const at::Tensor z = row_log_sum_exp(inputs.logits);
    loss = loss + (options.z_loss * share) * (sums_of(z * z) * per_token).sum();
  }
  return loss.to(inputs.logits.scalar_type());
}

void update_bias(at::Tensor& bias, std::span<const std::int64_t> step_picks, double rate) {
  COTERIE_REQUIRE(bias.numel() == static_cast<std::int64_t>(step_picks.size()),
                  "selection bias of ", bias.numel(), " experts, but counts of ",
                  step_picks.size());
  std::int64_t sum = 0;
  for (const std::int64_t picks : step_picks) {
    sum += picks;
  }
  const auto E = static_cast<std::int64_t>(step_picks.size());
  std::vector<double> change;
  for (const std::int64_t picks : step_picks) {
    const std::int64_t excess = picks * E - sum;  // sign of picks - mean, exactly
    change.push_back(excess == 0 ? 0.0 : excess > 0 ? -rate : rate);
  }
  const at::NoGradGuard guard;
  bias.add_(at::tensor(change, at::kDouble).to(bias.options()));
}

}  // namespace coterie::gates
