// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/rotary_kernel.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "coterie/run/device/device.hpp"

namespace coterie::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor rotated(const at::Tensor& x, const variable_list& tables, bool is_backward) {
  const at::Tensor from = x.contiguous();
  at::Tensor to = at::empty_like(from);
  kernels::cuda::Rotary task;
  task.x = device::view_of(from.flatten(1));
  task.y = device::mutable_view_of(to.flatten(1));
  task.head_dim = x.size(2);
  task.cosines = tables[0].const_data_ptr<float>();
  task.sines = tables[1].const_data_ptr<float>();
  task.positions = tables[2].const_data_ptr<std::int64_t>();
  task.is_backward = is_backward;
  kernels::cuda::rotary(task, device::current_stream(x.device()));
  return to;
}

struct Rotated : Function<Rotated> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& cosines,
                          const Variable& sines, const Variable& positions) {
    context->save_for_backward({cosines, sines, positions});
    return rotated(x, {cosines, sines, positions}, false);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {rotated(gradients[0], context->get_saved_variables(), true), {}, {}, {}};
  }
};

}  // namespace

bool has_rotary_kernel(const at::Tensor& x, const RotaryTable& table) {
  return kernels::cuda::is_built() && x.is_cuda() && x.size(2) % 2 == 0 &&
         (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat) &&
         table.cosines.is_cuda() && table.cosines.scalar_type() == at::kFloat;
}

at::Tensor rotary_on_gpu(const at::Tensor& x, const SequenceShape& shape) {
  return Rotated::apply(x, shape.rotary.cosines, shape.rotary.sines, shape.positions);
}

}  // namespace coterie::models
