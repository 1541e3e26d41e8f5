// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/recompute.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

namespace coterie::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Carries the function through the autograd context, which holds tensors and torch's own classes.
struct HeldFunction : torch::CustomClassHolder {
  explicit HeldFunction(Recomputable f) : function(std::move(f)) {}
  Recomputable function;
};

struct Recompute : Function<Recompute> {
  /// `anchor` requires a gradient, so that the node is in the graph even if x does not.
  static variable_list forward(AutogradContext* context, const Variable& x, const Variable& /*a*/,
                               const c10::intrusive_ptr<HeldFunction>& held) {
    context->save_for_backward({x});
    context->saved_data["function"] = c10::IValue::make_capsule(held);
    return held->function(x.detach(), false);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = c10::static_intrusive_pointer_cast<HeldFunction>(
        context->saved_data["function"].toCapsule());
    at::Tensor x = context->get_saved_variables()[0].detach();
    x.requires_grad_(true);
    const at::AutoGradMode with_gradients(true);
    const variable_list results = held->function(x, true);
    variable_list roots;
    variable_list root_gradients;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].requires_grad()) {
        roots.push_back(results[i]);
        root_gradients.push_back(gradients[i].defined() ? gradients[i]
                                                        : at::zeros_like(results[i]));
      }
    }
    torch::autograd::backward(roots, root_gradients);
    return {x.grad(), {}, {}};
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(const Recomputable& function, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) {
    return function(x, false);
  }
  const at::Tensor anchor = at::zeros({0}, x.options()).requires_grad_(true);
  return Recompute::apply(x, anchor, c10::make_intrusive<HeldFunction>(function));
}

}  // namespace coterie::models
