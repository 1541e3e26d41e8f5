// SPDX-License-Identifier: Apache-2.0
#include "gate_case.hpp"

#include <ATen/Parallel.h>

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

std::vector<GateOptions> every_gate() {
  std::vector<GateOptions> all;
  const auto add = [&](GateKind kind, std::int32_t top_k, const auto& change) {
    GateOptions options = small_gate(kind, 8, top_k);
    options.balance.z_loss = 0.3;
    if (kind != GateKind::kExpertChoice && kind != GateKind::kSoftMoe) {
      options.balance.load_balance = 0.7;
    }
    change(options);
    all.push_back(options);
  };
  const auto nothing = [](GateOptions&) {};
  add(GateKind::kTopkSoftmax, 2, nothing);
  add(GateKind::kTopkSoftmax, 3, [](GateOptions& o) { o.renormalise = true; });
  add(GateKind::kTopkSoftmax, 2, [](GateOptions& o) { o.softmax_over = SoftmaxOver::kSelected; });
  add(GateKind::kTopkSoftmax, 2, [](GateOptions& o) { o.balance.scope = BalanceScope::kBatch; });
  add(GateKind::kGshard, 2, nothing);
  add(GateKind::kGshard, 3, [](GateOptions& o) { o.noise = false; });
  add(GateKind::kSwitch, 1, nothing);
  add(GateKind::kSwitch, 1, [](GateOptions& o) { o.jitter = 0.3; });
  add(GateKind::kSigmoid, 1, nothing);
  add(GateKind::kSigmoid, 3, [](GateOptions& o) { o.renormalise = true; });
  add(GateKind::kDeepseek, 3, [](GateOptions& o) {
    o.selection_bias = o.renormalise = true;
    o.num_groups = 4;
    o.num_groups_kept = 2;
    o.scaling = 2.5;
  });
  add(GateKind::kDeepseek, 2, [](GateOptions& o) {
    o.score = ScoreFunction::kSoftmax;
    o.group_score = GroupScore::kMax;
    o.num_groups = 8;
    o.num_groups_kept = 3;
  });
  add(GateKind::kXmoe, 2, [](GateOptions& o) { o.projection = 3; });
  add(GateKind::kXmoe, 2, [](GateOptions& o) { o.renormalise = true; });
  add(GateKind::kExpertChoice, 1, [](GateOptions& o) { o.capacity_factor = 1.5; });
  add(GateKind::kSoftMoe, 1, [](GateOptions& o) { o.slots_per_expert = 2; });
  add(GateKind::kSoftMoe, 1, [](GateOptions& o) { o.normalise = true; });
  return all;
}

std::string describe(const GateOptions& options) {
  const Json plain = to_json(small_gate(options.kind));
  std::string text = name_of(options.kind);
  const Json all = to_json(options);
  for (const auto& [key, value] : all.items()) {
    if (plain.at(key) != value) {
      text += ", " + key + " " + value.dump();
    }
  }
  return text;
}

std::shared_ptr<Gate> random_gate(const GateOptions& options, std::uint64_t seed) {
  auto gate = make_gate(options);
  randomize(*gate, seed);
  for (at::Tensor& bias : gate->buffers()) {
    bias.copy_(0.2 * random_values(bias.sizes(), seed + 99));
  }
  return gate;
}

TokenBatch take_sequences(const TokenBatch& batch, std::int64_t first, std::int64_t last) {
  TokenBatch part = batch;
  const std::int64_t begin = batch.sequence_begin(first);
  const std::int64_t count = batch.sequence_begin(last) - begin;
  part.x = batch.x.narrow(0, begin, count);
  part.token_ids = batch.token_ids.narrow(0, begin, count);
  if (batch.is_real.defined()) {
    part.is_real = batch.is_real.narrow(0, begin, count);
  }
  part.sequence_offsets.clear();
  for (std::int64_t s = first; s <= last; ++s) {
    part.sequence_offsets.push_back(batch.sequence_begin(s) - begin);
  }
  return part;
}

TokenBatch pad_left(const TokenBatch& batch, std::int64_t count) {
  TokenBatch padded = batch;
  std::vector<at::Tensor> x;
  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> real;
  padded.sequence_offsets = {0};
  for (std::int64_t s = 0; s < batch.num_sequences(); ++s) {
    const TokenBatch one = take_sequences(batch, s, s + 1);
    x.push_back(50 * random_values({count, batch.x.size(1)}, 1000 + static_cast<unsigned>(s))
                         .to(batch.x.scalar_type()));
    x.push_back(one.x);
    ids.push_back(at::full({count}, -7, at::kLong));
    ids.push_back(one.token_ids);
    real.push_back(at::zeros({count}, at::kBool));
    real.push_back(at::ones({one.num_tokens()}, at::kBool));
    padded.sequence_offsets.push_back(padded.sequence_offsets.back() + count + one.num_tokens());
  }
  padded.x = at::cat(x);
  padded.token_ids = at::cat(ids);
  padded.is_real = at::cat(real);
  return padded;
}

at::Tensor real_rows(const TokenBatch& batch, const at::Tensor& rows) {
  return batch.is_real.defined() ? rows.index({batch.is_real}) : rows;
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
  at::set_num_threads(1);  // thousands of tiny passes
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
