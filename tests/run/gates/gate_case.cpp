// SPDX-License-Identifier: Apache-2.0
#include "gate_case.hpp"

#include <cstring>

#include "coterie/base/random.hpp"

namespace coterie::gates {

at::Tensor random_values(at::IntArrayRef shape, std::uint64_t seed) {
  at::Tensor values = at::empty(shape, at::kDouble);
  Random random(seed);
  double* const data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    data[i] = random.normal();
  }
  return values;
}

TokenBatch random_batch(const std::vector<std::int64_t>& lengths, std::int64_t hidden,
                        std::uint64_t seed) {
  TokenBatch batch;
  batch.sequence_offsets = {0};
  for (const std::int64_t length : lengths) {
    batch.sequence_offsets.push_back(batch.sequence_offsets.back() + length);
  }
  const std::int64_t T = batch.sequence_offsets.back();
  batch.x = random_values({T, hidden}, seed);
  batch.token_ids = at::arange(100, 100 + T, at::kLong);
  batch.seed = 17;
  batch.step = 3;
  return batch;
}

GateOptions small_gate(GateKind kind, std::int32_t num_experts, std::int32_t top_k) {
  GateOptions options;
  options.kind = kind;
  options.name = "layer 5";
  options.hidden = 6;
  options.num_experts = num_experts;
  options.top_k = top_k;
  options.type = RouterType::kFloat64;
  return options;
}

void randomize(Gate& gate, std::uint64_t seed, double deviation) {
  const at::NoGradGuard guard;
  for (at::Tensor& parameter : gate.parameters()) {
    if (parameter.dim() == 2) {
      parameter.copy_(deviation * random_values(parameter.sizes(), seed++));
    }
  }
}

double gradient_error(const std::vector<at::Tensor>& inputs,
                      const std::function<at::Tensor()>& loss) {
  for (const at::Tensor& input : inputs) {
    input.mutable_grad() = at::Tensor();
  }
  loss().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& input : inputs) {
    gradients.push_back(input.grad().defined() ? input.grad().clone() : at::zeros_like(input));
  }
  const at::NoGradGuard guard;
  constexpr double kStep = 1e-6;
  double error = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    double* const data = inputs[i].mutable_data_ptr<double>();
    const at::Tensor gradient = gradients[i].contiguous();
    for (std::int64_t n = 0; n < inputs[i].numel(); ++n) {
      const double value = data[n];
      data[n] = value + kStep;
      const double above = loss().item<double>();
      data[n] = value - kStep;
      const double below = loss().item<double>();
      data[n] = value;
      const double expected = (above - below) / (2 * kStep);
      error = std::max(error, std::abs(expected - gradient.const_data_ptr<double>()[n]));
      largest = std::max(largest, std::abs(expected));
    }
  }
  return error / (1.0 + largest);
}

at::Tensor dot_with_fixed(const at::Tensor& values, std::uint64_t seed) {
  return (values * random_values(values.sizes(), seed).tanh()).sum();
}

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 && b.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

bool bit_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  const at::Tensor left = a.detach().contiguous();
  const at::Tensor right = b.detach().contiguous();
  return left.numel() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace coterie::gates
