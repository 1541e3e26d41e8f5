// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/device_experts.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"

namespace coterie::nn {
namespace {

namespace cuda = kernels::cuda;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

cuda::ExpertWeights weights_of(const at::Tensor& stacked) {
  return {stacked.const_data_ptr(), stacked.size(0), stacked.size(1), stacked.size(2)};
}

cuda::ExpertGradients gradients_of(const at::Tensor& stacked) {
  return {stacked.mutable_data_ptr(), stacked.size(0), stacked.size(1), stacked.size(2)};
}

at::Tensor bytes_on(const at::Tensor& like, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, like.options().dtype(at::kByte));
}

struct DeviceExperts : Function<DeviceExperts> {
  static Variable forward(AutogradContext* context, const Variable& rows, const Variable& ids,
                          const Variable& weights, const Variable& up, const Variable& down,
                          bool keep) {
    const std::int64_t pairs = ids.numel();
    const std::int64_t width = up.size(1);
    at::Tensor y = at::empty_like(rows);
    at::Tensor pre;
    if (keep) {
      pre = at::empty({pairs, width}, rows.options());
    }
    if (rows.size(0) > 0) {
      cuda::ExpertLayer task;
      task.x = device::view_of(rows);
      task.ids = ids.const_data_ptr<std::int32_t>();
      task.weights = weights.const_data_ptr<float>();
      task.top_k = static_cast<int>(ids.size(1));
      task.gate_up = weights_of(up);
      task.down = weights_of(down);
      task.y = device::mutable_view_of(y);
      if (keep) {
        task.pre = device::mutable_view_of(pre);
      }
      task.workspace_bytes = cuda::expert_layer_workspace_bytes(
          rows.size(0), task.top_k, static_cast<int>(up.size(0)), rows.size(1), width / 2);
      const at::Tensor workspace = bytes_on(rows, task.workspace_bytes);
      task.workspace = workspace.mutable_data_ptr();
      cuda::expert_layer(task, {}, device::current_stream(rows.device()));
    }
    if (keep) {
      context->save_for_backward({rows, ids, weights, up, down, pre});
    }
    context->saved_data["spent"] = false;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    COTERIE_REQUIRE(!context->saved_data["spent"].toBool(),
                    "experts on a GPU: backward for the second time, but the first one has used "
                    "up the pre-activations");
    context->saved_data["spent"] = true;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& rows = saved[0];
    const at::Tensor& up = saved[3];
    const at::Tensor& down = saved[4];
    const at::Tensor grad_y = gradients[0].to(rows.scalar_type()).contiguous();
    at::Tensor grad_rows = at::empty_like(rows);
    at::Tensor grad_weights = at::empty_like(saved[2]);
    at::Tensor grad_up = at::empty_like(up);
    at::Tensor grad_down = at::empty_like(down);
    if (rows.size(0) == 0) {
      return {grad_rows, {}, grad_weights, grad_up.zero_(), grad_down.zero_(), {}};
    }
    cuda::ExpertLayerBackward task;
    task.grad_y = device::view_of(grad_y);
    task.x = device::view_of(rows);
    task.pre = device::mutable_view_of(saved[5]);
    task.ids = saved[1].const_data_ptr<std::int32_t>();
    task.weights = saved[2].const_data_ptr<float>();
    task.top_k = static_cast<int>(saved[1].size(1));
    task.gate_up = weights_of(up);
    task.down = weights_of(down);
    task.reuse_pre = true;
    task.grad_x = device::mutable_view_of(grad_rows);
    task.grad_weights = grad_weights.mutable_data_ptr<float>();
    task.grad_gate_up = gradients_of(grad_up);
    task.grad_down = gradients_of(grad_down);
    task.workspace_bytes = cuda::expert_layer_backward_workspace_bytes(task);
    const at::Tensor workspace = bytes_on(rows, task.workspace_bytes);
    task.workspace = workspace.mutable_data_ptr();
    cuda::expert_layer_backward(task, {}, device::current_stream(rows.device()));
    return {grad_rows, {}, grad_weights, grad_up, grad_down, {}};
  }
};

}  // namespace

bool has_device_kernels(const MoELayerOptions& options) {
  return kernels::cuda::is_built() && options.type == at::kBFloat16 &&
         options.expert_kind == ExpertKind::kSwiGlu && options.hidden % 8 == 0 &&
         options.intermediate % 8 == 0;
}

at::Tensor device_experts(const at::Tensor& rows, const at::Tensor& ids, const at::Tensor& weights,
                          const ExpertTensors& experts) {
  const bool keep = at::GradMode::is_enabled();
  return DeviceExperts::apply(rows.contiguous(), ids.to(at::kInt).contiguous(),
                              weights.to(at::kFloat).contiguous(), experts.up, experts.down, keep);
}

}  // namespace coterie::nn
