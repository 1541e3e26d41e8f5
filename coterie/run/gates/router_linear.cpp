// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/router_linear.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "coterie/base/error.hpp"

namespace coterie::gates {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

kernels::ConstMatrixView view_of(const at::Tensor& matrix) {
  const bool bf16 = matrix.scalar_type() == at::kBFloat16;
  return {matrix.const_data_ptr(), matrix.size(0), matrix.size(1), matrix.size(1),
          bf16 ? kernels::DType::kBfloat16 : kernels::DType::kFloat32};
}

/// y = x w^T in fp64, one chain an element.
void linear_double(const at::Tensor& x, const at::Tensor& w, at::Tensor& y,
                   const kernels::Execution& execution) {
  const std::int64_t K = x.size(1);
  const std::int64_t N = w.size(0);
  const double* const xs = x.const_data_ptr<double>();
  const double* const ws = w.const_data_ptr<double>();
  double* const ys = y.mutable_data_ptr<double>();
  execution.pool().run_ranges(x.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t n = 0; n < N; ++n) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < K; ++k) {
          sum += xs[i * K + k] * ws[n * K + k];
        }
        ys[i * N + n] = sum;
      }
    }
  });
}

/// y = x w^T in w's type. x on the CPU may be bf16 beside fp32.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, const kernels::Execution& execution) {
  if (!x.is_cpu()) {
    return at::mm(x.to(w.scalar_type()), w.t());
  }
  const at::Tensor rows = x.contiguous();
  const at::Tensor weight = w.contiguous();
  at::Tensor y = at::empty({x.size(0), w.size(0)}, w.options());
  if (w.scalar_type() == at::kDouble) {
    linear_double(rows, weight, y, execution);
  } else {
    kernels::linear(
        view_of(rows), view_of(weight),
        {y.mutable_data_ptr(), y.size(0), y.size(1), y.size(1), kernels::DType::kFloat32},
        execution);
  }
  return y;
}

/// x as a type that product() takes beside weight's.
at::Tensor prepare(const at::Tensor& x, const at::Tensor& weight) {
  const bool as_it_is = weight.scalar_type() == at::kFloat && x.scalar_type() == at::kBFloat16;
  return as_it_is ? x : x.to(weight.scalar_type());
}

struct RouterLinear : torch::autograd::Function<RouterLinear> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          kernels::Threads* threads, std::int64_t backend) {
    const kernels::Execution execution{threads, static_cast<kernels::Backend>(backend)};
    const at::Tensor logits = product(prepare(x.detach(), weight), weight.detach(), execution);
    context->save_for_backward({x, weight, at::isfinite(logits).all(1, /*keepdim=*/true)});
    context->saved_data["threads"] = reinterpret_cast<std::int64_t>(threads);
    context->saved_data["backend"] = backend;
    return logits;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const kernels::Execution execution{
        reinterpret_cast<kernels::Threads*>(context->saved_data["threads"].toInt()),
        static_cast<kernels::Backend>(context->saved_data["backend"].toInt())};
    const at::Tensor& x = saved[0];
    const at::Tensor weight = saved[1].detach();
    const at::Tensor& finite = saved[2];
    const at::Tensor gradient = at::where(finite, gradients[0], 0.0).to(weight.scalar_type());
    Variable grad_x;
    Variable grad_weight;
    if (context->needs_input_grad(0)) {
      grad_x = product(gradient, weight.t(), execution).to(x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor rows = at::where(finite, x.detach().to(weight.scalar_type()), 0.0);
      grad_weight = product(gradient.t(), rows.t(), execution);
    }
    return {grad_x, grad_weight, Variable(), Variable()};
  }
};

}  // namespace

at::Tensor router_linear(const at::Tensor& x, const at::Tensor& weight, const std::string& name,
                         const kernels::Execution& execution) {
  const at::ScalarType type = weight.scalar_type();
  COTERIE_REQUIRE(type == at::kFloat || type == at::kDouble, name, ": the router's weight holds ",
                  type, "; it must be fp32 or fp64 from loading on");
  COTERIE_REQUIRE(type == at::kDouble || x.scalar_type() != at::kDouble, name,
                  ": tokens are fp64, but the router's weight is fp32; make the gate with type "
                  "float64");
  COTERIE_REQUIRE(x.size(1) == weight.size(1), name, ": tokens have ", x.size(1),
                  " numbers, the router's rows ", weight.size(1));
  return RouterLinear::apply(x, weight, execution.threads,
                             static_cast<std::int64_t>(execution.backend));
}

}  // namespace coterie::gates
