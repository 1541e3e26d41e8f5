// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/adamw.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"
#include "coterie/training/strict_object.hpp"

namespace coterie::training {
namespace {

/// Rows travel after a step in bundles of about this size.
constexpr std::int64_t kBundleBytes = std::int64_t{32} << 20U;
constexpr std::int64_t kGrain = 1 << 14;

/// The numbers of one step, in the type of the state.
template <typename T>
struct Factors {
  T scale, keep, one_minus_beta1, beta2, one_minus_beta2, root_correction2, epsilon, step_size;
};

template <typename T>
Factors<T> factors_of(const AdamWOptions& o, double decay, double rate, double scale,
                      std::int64_t t) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(t));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(t));
  return {static_cast<T>(scale),       static_cast<T>(1 - rate * decay),
          static_cast<T>(1 - o.beta1), static_cast<T>(o.beta2),
          static_cast<T>(1 - o.beta2), static_cast<T>(std::sqrt(correction2)),
          static_cast<T>(o.epsilon),   static_cast<T>(rate / correction1)};
}

/// Plain loop; compiled without contraction, so that no element's bits depend on its neighbours.
template <typename T>
void update(std::int64_t count, const Factors<T>& f, T* __restrict p, const T* __restrict gradient,
            T* __restrict m, T* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = gradient[i] * f.scale;
    m[i] = m[i] + f.one_minus_beta1 * (g - m[i]);
    v[i] = v[i] * f.beta2 + f.one_minus_beta2 * g * g;
    p[i] = p[i] * f.keep - f.step_size * m[i] / (std::sqrt(v[i]) / f.root_correction2 + f.epsilon);
  }
}

template <typename T>
void update_parallel(const Factors<T>& f, const at::Tensor& value, const at::Tensor& gradient,
                     const AdamWState& state) {
  T* p = value.mutable_data_ptr<T>();
  const T* g = gradient.const_data_ptr<T>();
  T* m = state.average.mutable_data_ptr<T>();
  T* v = state.square.mutable_data_ptr<T>();
  at::parallel_for(0, value.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    update<T>(end - begin, f, p + begin, g + begin, m + begin, v + begin);
  });
}

/// bf16 values and states without master weights: computed in fp32, rounded back.
void update_narrow(const Factors<float>& f, const at::Tensor& value, const at::Tensor& gradient,
                   const AdamWState& state) {
  const at::Tensor wide = value.to(at::kFloat);
  AdamWState wide_state;
  wide_state.average = state.average.to(at::kFloat);
  wide_state.square = state.square.to(at::kFloat);
  update_parallel<float>(f, wide, gradient.to(at::kFloat).contiguous(), wide_state);
  value.copy_(wide);
  state.average.copy_(wide_state.average);
  state.square.copy_(wide_state.square);
}

/// The scale as a number on the parameters' GPU; undefined for 1.
at::Tensor scale_on_gpu(const at::Tensor& value, double scale) {
  return scale == 1.0 ? at::Tensor()
                      : at::full({}, scale, value.options().dtype(at::kFloat).requires_grad(false));
}

bool has_gpu_kernel(const at::Tensor& value) {
  return kernels::cuda::is_built() && value.is_cuda() && value.scalar_type() != at::kDouble;
}

/// torch.optim.adam._single_tensor_adam, line by line.
void update_reference(const Factors<double>& f, at::Tensor value, const at::Tensor& gradient,
                      const AdamWState& state) {
  const at::Tensor g = gradient * f.scale;
  value.mul_(f.keep);
  at::Tensor average = state.average;
  at::Tensor square = state.square;
  average.lerp_(g, f.one_minus_beta1);
  square.mul_(f.beta2).addcmul_(g, g, f.one_minus_beta2);
  const at::Tensor denominator = (square.sqrt() / f.root_correction2).add_(f.epsilon);
  value.addcdiv_(average, denominator, -f.step_size);
}

bool is_sharded(const Parameter& parameter, const AdamWOptions& options) {
  return options.shard_state && !parameter.is_expert && !parameter.is_frozen &&
         parameter.num_replicas() > 1;
}

AdamWState make_state(const Parameter& parameter, const AdamWOptions& options) {
  const at::Tensor& value = parameter.value;
  const auto type = value.scalar_type();
  COTERIE_CHECK(type == at::kFloat || type == at::kDouble || type == at::kBFloat16, parameter.name,
                ": type ", type, " cannot be trained");
  COTERIE_CHECK(value.dim() >= 1 && value.is_contiguous(), parameter.name, ": shape ",
                value.sizes(), " is not contiguous");
  AdamWState state;
  if (parameter.is_frozen) {
    return state;  // no rows
  }
  state.num_rows = value.size(0);
  state.is_sharded = is_sharded(parameter, options);
  if (state.is_sharded) {
    const auto [first, last] =
        rows_of_replica(state.num_rows, parameter.replica(), parameter.num_replicas());
    state.first_row = first;
    state.num_rows = last - first;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor rows = value.detach().narrow(0, state.first_row, state.num_rows);
  const bool narrow = type == at::kBFloat16 && !options.master_weights;
  const auto kept = rows.options().dtype(type == at::kDouble ? at::kDouble
                                         : narrow            ? at::kBFloat16
                                                             : at::kFloat);
  state.average = at::zeros(rows.sizes(), kept);
  state.square = at::zeros(rows.sizes(), kept);
  if (type == at::kBFloat16 && !narrow) {
    state.master = rows.to(at::kFloat);
  }
  return state;
}

/// Parameters [first, last) share one group of replicas; each rank's rows of all of them reach all.
class RowBundle {
 public:
  explicit RowBundle(comm::Communicator& group) : group_(group) {}

  void add(const at::Tensor& value) {
    values_.push_back(value);
    num_bytes_ += block_bytes(value);
  }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_ * group_.size(); }

  void exchange() {
    if (values_.empty()) {
      return;
    }
    std::vector<std::byte> mine(static_cast<std::size_t>(num_bytes_));
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(group_.size()));
    for_each_rows(group_.rank(), mine.data(),
                  [](const at::Tensor& bundle, const at::Tensor& rows) { bundle.copy_(rows); });
    group_.all_gather(mine, all, comm::Purpose::kGradient);
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank != group_.rank()) {
        for_each_rows(rank, all.data() + static_cast<std::size_t>(rank) * mine.size(),
                      [](const at::Tensor& bundle, const at::Tensor& rows) { rows.copy_(bundle); });
      }
    }
    values_.clear();
    num_bytes_ = 0;
  }

 private:
  static std::int64_t row_bytes(const at::Tensor& value) {
    return value.numel() / value.size(0) * value.element_size();
  }
  /// The largest share of any rank.
  [[nodiscard]] std::int64_t block_bytes(const at::Tensor& value) const {
    return (value.size(0) + group_.size() - 1) / group_.size() * row_bytes(value);
  }
  template <typename Copy>
  void for_each_rows(int rank, std::byte* bundle, const Copy& copy) {
    for (const at::Tensor& value : values_) {
      const auto [first, last] = rows_of_replica(value.size(0), rank, group_.size());
      const at::Tensor rows = value.narrow(0, first, last - first);  // on any device
      copy(at::from_blob(bundle, rows.sizes(), at::TensorOptions().dtype(rows.scalar_type())),
           rows);
      bundle += block_bytes(value);
    }
  }

  comm::Communicator& group_;
  std::vector<at::Tensor> values_;
  std::int64_t num_bytes_ = 0;
};

}  // namespace

std::pair<std::int64_t, std::int64_t> rows_of_replica(std::int64_t num_rows, int rank, int size) {
  return {num_rows * rank / size, num_rows * (rank + 1) / size};
}

AdamW::AdamW(std::span<Parameter> parameters, const AdamWOptions& options)
    : parameters_(parameters), options_(options) {
  for (const Parameter& parameter : parameters_) {
    states_.push_back(make_state(parameter, options_));
  }
}

void AdamW::step(double rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const AdamWState& state = states_[i];
    if (state.num_rows == 0) {
      continue;
    }
    if (!options_.reference && has_gpu_kernel(parameter.value)) {
      update_on_gpu(i, rate, scale_on_gpu(parameter.value, gradient_scale));
      continue;
    }
    const at::Tensor rows = parameter.value.detach().narrow(0, state.first_row, state.num_rows);
    const at::Tensor value = state.master.defined() ? state.master : rows;
    const at::Tensor gradient = parameter.gradient()
                                    .narrow(0, state.first_row, state.num_rows)
                                    .to(value.scalar_type())
                                    .contiguous();
    const double decay = parameter.has_decay ? options_.weight_decay : 0;
    if (options_.reference || !value.is_cpu()) {
      update_reference(factors_of<double>(options_, decay, rate, gradient_scale, num_steps_), value,
                       gradient, state);
    } else if (value.scalar_type() == at::kBFloat16) {
      update_narrow(factors_of<float>(options_, decay, rate, gradient_scale, num_steps_), value,
                    gradient, state);
    } else if (value.scalar_type() == at::kDouble) {
      update_parallel(factors_of<double>(options_, decay, rate, gradient_scale, num_steps_), value,
                      gradient, state);
    } else {
      update_parallel(factors_of<float>(options_, decay, rate, gradient_scale, num_steps_), value,
                      gradient, state);
    }
    if (state.master.defined()) {
      rows.copy_(state.master);
    }
  }
  gather_rows();
}

void AdamW::step(double rate, const at::Tensor& gradient_scale) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    COTERIE_CHECK(has_gpu_kernel(parameters_[i].value), parameters_[i].name, " is not on a GPU");
    if (states_[i].num_rows > 0) {
      update_on_gpu(i, rate, gradient_scale);
    }
  }
  gather_rows();
}

void AdamW::update_on_gpu(std::size_t index, double rate, const at::Tensor& scale) {
  const Parameter& parameter = parameters_[index];
  AdamWState& state = states_[index];
  const at::Tensor rows = parameter.value.detach().narrow(0, state.first_row, state.num_rows);
  const at::Tensor gradient =
      parameter.gradient().narrow(0, state.first_row, state.num_rows).contiguous();
  const auto f = factors_of<float>(options_, parameter.has_decay ? options_.weight_decay : 0, rate,
                                   1.0, num_steps_);
  const auto type_of = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBFloat16 ? kernels::DType::kBfloat16
                                                 : kernels::DType::kFloat32;
  };
  kernels::cuda::AdamWUpdate task;
  task.count = rows.numel();
  task.values = rows.mutable_data_ptr();
  task.value_type = type_of(rows);
  task.gradient = gradient.const_data_ptr();
  task.master = state.master.defined() ? state.master.mutable_data_ptr<float>() : nullptr;
  task.average = state.average.mutable_data_ptr();
  task.square = state.square.mutable_data_ptr();
  task.state_type = type_of(state.average);
  task.scale = scale.defined() ? scale.const_data_ptr<float>() : nullptr;
  task.keep = f.keep;
  task.one_minus_beta1 = f.one_minus_beta1;
  task.beta2 = f.beta2;
  task.one_minus_beta2 = f.one_minus_beta2;
  task.root_correction2 = f.root_correction2;
  task.epsilon = f.epsilon;
  task.step_size = f.step_size;
  kernels::cuda::adamw_update(task, device::current_stream(rows.device()));
}

void AdamW::gather_rows() {
  std::vector<std::pair<comm::Communicator*, RowBundle>> bundles;
  for (const Parameter& parameter : parameters_) {
    if (!is_sharded(parameter, options_) || parameter.value.size(0) == 0) {
      continue;
    }
    auto found = std::ranges::find(bundles, parameter.replicas,
                                   &std::pair<comm::Communicator*, RowBundle>::first);
    if (found == bundles.end()) {
      bundles.emplace_back(parameter.replicas, RowBundle(*parameter.replicas));
      found = bundles.end() - 1;
    }
    found->second.add(parameter.value.detach());
    if (found->second.num_bytes() >= kBundleBytes) {
      found->second.exchange();
    }
  }
  for (auto& [group, bundle] : bundles) {
    bundle.exchange();
  }
}

void AdamW::values_from_masters() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].master.defined()) {
      parameters_[i]
          .value.detach()
          .narrow(0, states_[i].first_row, states_[i].num_rows)
          .copy_(states_[i].master);
    }
  }
  gather_rows();
}

void AdamW::masters_from_values() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i].master.defined()) {
      states_[i].master.copy_(
          parameters_[i].value.detach().narrow(0, states_[i].first_row, states_[i].num_rows));
    }
  }
}

std::int64_t AdamW::num_bytes() const {
  std::int64_t bytes = 0;
  for (const AdamWState& state : states_) {
    for (const at::Tensor& tensor : {state.average, state.square, state.master}) {
      bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
    }
  }
  return bytes;
}

Json to_json(const AdamWOptions& options) {
  return {{"beta1", options.beta1},
          {"beta2", options.beta2},
          {"epsilon", options.epsilon},
          {"weight_decay", options.weight_decay},
          {"shard_state", options.shard_state},
          {"master_weights", options.master_weights},
          {"reference", options.reference}};
}

AdamWOptions read_adamw_options(const JsonReader& reader) {
  AdamWOptions options;
  StrictObject object(reader);
  object.read("beta1", options.beta1, 0, 0.999999999);
  object.read("beta2", options.beta2, 0, 0.999999999);
  object.read("epsilon", options.epsilon, 0, 1);
  object.read("weight_decay", options.weight_decay, 0, 1e3);
  object.read("shard_state", options.shard_state);
  object.read("master_weights", options.master_weights);
  object.read("reference", options.reference);
  object.finish();
  return options;
}

}  // namespace coterie::training
