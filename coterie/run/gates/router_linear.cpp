// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/router_linear.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>

#include "coterie/base/error.hpp"

namespace coterie::gates {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

kernels::DType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16: return kernels::DType::kBfloat16;
    case at::kDouble: return kernels::DType::kFloat64;
    default: return kernels::DType::kFloat32;
  }
}

kernels::ConstMatrixView view_of(const at::Tensor& matrix) {
  return {matrix.const_data_ptr(), matrix.size(0), matrix.size(1), matrix.size(1), type_of(matrix)};
}

kernels::MatrixView mutable_view_of(at::Tensor& matrix) {
  return {matrix.mutable_data_ptr(), matrix.size(0), matrix.size(1), matrix.size(1),
          type_of(matrix)};
}

/// x contiguous, in a type that the kernels take beside weight's.
at::Tensor prepare(const at::Tensor& x, const at::Tensor& weight) {
  const bool as_it_is = weight.scalar_type() == at::kFloat && x.scalar_type() == at::kBFloat16;
  return (as_it_is ? x : x.to(weight.scalar_type())).contiguous();
}

/// Whether products go over bf16 parts on the tensor cores.
bool goes_by_parts(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kFloat;
}

/// [3 n, ...] (dim 0) or [.., 3 n] (dim 1): fp32 numbers as sums of three bf16 ones, which hold all
/// 24 bits, the largest first.
std::array<at::Tensor, 3> bf16_parts(const at::Tensor& x) {
  const at::Tensor first = x.to(at::kBFloat16);
  const at::Tensor rest = x - first;
  const at::Tensor second = rest.to(at::kBFloat16);
  return {first, second, (rest - second).to(at::kBFloat16)};
}

/// Sum over the three blocks of n rows, the smallest first.
at::Tensor sum_of_parts(const at::Tensor& parts, std::int64_t dim) {
  const auto blocks = parts.chunk(3, dim);
  return (blocks[2] + blocks[1]) + blocks[0];
}

/// x W^T in fp32: one bf16 product with the parts of W, sums in fp32.
at::Tensor logits_by_parts(const at::Tensor& x, const at::Tensor& weight) {
  const auto parts = bf16_parts(weight);
  const at::Tensor all = at::cat({parts[0], parts[1], parts[2]}, 0);  // [3 E, H]
  return sum_of_parts(at::mm(x, all.t(), at::kFloat), 1);
}

struct Gradients {
  at::Tensor x;       ///< undefined unless wanted
  at::Tensor weight;  ///< undefined unless wanted
};

/// All contiguous; gradient and weight of one type, x of it or narrower.
Gradients product_backward(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& gradient, std::array<bool, 2> wanted,
                           const kernels::Execution& execution) {
  Gradients result;
  if (goes_by_parts(x, weight)) {
    const auto g = bf16_parts(gradient);
    if (wanted[0]) {  // rounded to bf16, so that terms below 2^-16 do not count
      const auto w = bf16_parts(weight);
      result.x = at::mm(at::cat({g[0], g[0], g[1]}, 1), at::cat({w[0], w[1], w[0]}, 0));
    }
    if (wanted[1]) {
      result.weight = sum_of_parts(at::mm(at::cat({g[0], g[1], g[2]}, 1).t(), x, at::kFloat), 0);
    }
    return result;
  }
  if (!x.is_cpu()) {
    result.x = wanted[0] ? at::mm(gradient, weight) : at::Tensor();
    result.weight = wanted[1] ? at::mm(gradient.t(), x.to(gradient.scalar_type())) : at::Tensor();
    return result;
  }
  kernels::LinearBackward task;
  task.x = view_of(x);
  task.w = view_of(weight);
  task.grad_y = view_of(gradient);
  if (wanted[0]) {
    result.x = at::empty(x.sizes(), weight.options());
    task.grad_x = mutable_view_of(result.x);
  }
  if (wanted[1]) {
    result.weight = at::empty(weight.sizes(), weight.options());
    task.grad_w = mutable_view_of(result.weight);
  }
  kernels::linear_backward(task, execution);
  return result;
}

struct RouterLinear : torch::autograd::Function<RouterLinear> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight,
                          kernels::Threads* threads, std::int64_t backend) {
    const kernels::Execution execution{threads, static_cast<kernels::Backend>(backend)};
    const at::Tensor rows = x.detach();
    const at::Tensor matrix = weight.detach().contiguous();
    at::Tensor logits;
    if (x.is_cpu()) {
      logits = at::empty({x.size(0), weight.size(0)}, matrix.options());
      const at::Tensor prepared = prepare(rows, matrix);
      kernels::linear(view_of(prepared), view_of(matrix), mutable_view_of(logits), execution);
    } else if (goes_by_parts(rows, matrix)) {
      logits = logits_by_parts(rows.contiguous(), matrix);
    } else {
      logits = at::mm(rows.to(matrix.scalar_type()), matrix.t());
    }
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
    const at::Tensor weight = saved[1].detach().contiguous();
    const at::Tensor& finite = saved[2];
    at::Tensor rows = prepare(saved[0].detach(), weight);
    at::Tensor gradient = gradients[0].to(weight.scalar_type()).contiguous();
    if (rows.is_cuda() || !finite.all().item<bool>()) {  // without waiting for a GPU
      rows = at::where(finite, rows, 0.0);
      gradient = at::where(finite, gradient, 0.0);
    }
    const Gradients result =
        product_backward(rows, weight, gradient,
                         {context->needs_input_grad(0), context->needs_input_grad(1)}, execution);
    const Variable grad_x =
        result.x.defined() ? Variable(result.x.to(saved[0].scalar_type())) : Variable();
    return {grad_x, result.weight, Variable(), Variable()};
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
