// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/row_functions.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace coterie::gates {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

template <typename T>
T sigmoid_of(T z) {
  return T{1} / (T{1} + std::exp(-z));
}

template <typename T>
T softplus_of(T z) {
  return std::max(z, T{0}) + std::log1p(std::exp(-std::abs(z)));
}

template <typename T, typename Function>
at::Tensor map_as(const at::Tensor& values, const Function& function) {
  const at::Tensor from = values.contiguous();
  at::Tensor to = at::empty_like(from);
  const T* const in = from.const_data_ptr<T>();
  T* const out = to.mutable_data_ptr<T>();
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    out[i] = function(in[i]);
  }
  return to;
}

template <typename Function>
at::Tensor map(const at::Tensor& values, const Function& function) {
  return values.scalar_type() == at::kDouble ? map_as<double>(values, function)
                                             : map_as<float>(values, function);
}

at::Tensor plain_sigmoid(const at::Tensor& z) {
  return z.is_cpu() ? map(z, [](auto v) { return sigmoid_of(v); }) : at::sigmoid(z);
}

struct Sigmoid : torch::autograd::Function<Sigmoid> {
  static Variable forward(AutogradContext* context, const Variable& z) {
    const at::Tensor y = plain_sigmoid(z.detach());
    context->save_for_backward({y});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor y = context->get_saved_variables()[0];
    return {gradients[0] * ((1.0 - y) * y)};
  }
};

struct Softplus : torch::autograd::Function<Softplus> {
  static Variable forward(AutogradContext* context, const Variable& z) {
    context->save_for_backward({z});
    const at::Tensor values = z.detach();
    return z.is_cpu() ? map(values, [](auto v) { return softplus_of(v); }) : at::softplus(values);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * plain_sigmoid(context->get_saved_variables()[0].detach())};
  }
};

template <typename T>
void log_sum_exp_rows(const at::Tensor& z, at::Tensor& y) {
  const std::int64_t N = z.size(1);
  const T* const in = z.const_data_ptr<T>();
  T* const out = y.mutable_data_ptr<T>();
  for (std::int64_t r = 0; r < z.size(0); ++r) {
    const T highest = *std::max_element(in + r * N, in + (r + 1) * N);
    double sum = 0.0;
    for (std::int64_t n = 0; n < N; ++n) {
      sum += static_cast<double>(std::exp(in[r * N + n] - highest));
    }
    out[r] = highest + static_cast<T>(std::log(sum));
  }
}

struct LogSumExp : torch::autograd::Function<LogSumExp> {
  static Variable forward(AutogradContext* context, const Variable& z) {
    context->save_for_backward({z});
    const at::Tensor values = z.detach().contiguous();
    if (!z.is_cpu()) {
      return at::logsumexp(values, {1}, /*keepdim=*/true);
    }
    at::Tensor y = at::empty({z.size(0), 1}, values.options());
    if (z.scalar_type() == at::kDouble) {
      log_sum_exp_rows<double>(values, y);
    } else {
      log_sum_exp_rows<float>(values, y);
    }
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0] * at::softmax(context->get_saved_variables()[0].detach(), 1)};
  }
};

}  // namespace

at::Tensor row_sigmoid(const at::Tensor& z) {
  return Sigmoid::apply(z);
}

at::Tensor row_softplus(const at::Tensor& z) {
  return Softplus::apply(z);
}

at::Tensor row_log_sum_exp(const at::Tensor& z) {
  return LogSumExp::apply(z);
}

at::Tensor scale_rows(const at::Tensor& rows, const at::Tensor& factor) {
  const at::Tensor finite = at::isfinite(rows.detach()).all(1, /*keepdim=*/true);
  return at::where(finite, at::where(finite, rows, 0.0) * factor,
                   std::numeric_limits<double>::quiet_NaN());
}

at::Tensor unit_rows(const at::Tensor& matrix) {
  return matrix * at::rsqrt(matrix.square().sum(1, /*keepdim=*/true) + 1e-12);
}

}  // namespace coterie::gates
