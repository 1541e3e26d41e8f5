// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/nn/experts_function.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "coterie/base/error.hpp"

namespace coterie::nn {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// A tensor that may be absent.
SavedVariable saved(const at::Tensor& tensor) {
  return tensor.defined() ? SavedVariable(tensor, false) : SavedVariable();
}

/// The backward of the experts. A node of its own instead of a torch::autograd::Function, since
/// rows and lists are no tensors and must go when the graph lets go of its buffers.
struct ExpertsBackward final : torch::autograd::Node {
  std::shared_ptr<ExpertsRun> run;
  std::unique_ptr<layer::TrainingState> state;
  SavedVariable rows;
  SavedVariable up;
  SavedVariable down;
  SavedVariable up_bias;
  SavedVariable down_bias;

  std::string name() const override { return "MoEExpertsBackward"; }

  void release_variables() override {
    state.reset();
    for (SavedVariable* variable : {&rows, &up, &down, &up_bias, &down_bias}) {
      variable->reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    COTERIE_REQUIRE(state != nullptr, run->core().options().name,
                    ": backward for the second time, but the first one has let go of the rows; "
                    "keep the graph (retain_graph) to go through it twice");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor x = rows.unpack();
    const ExpertTensors experts{up.unpack(), down.unpack(), up_bias.unpack(), down_bias.unpack()};
    const at::Tensor grad_y = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(x);
    ExpertTensors wanted;
    const auto want = [&](std::size_t edge, const at::Tensor& tensor, at::Tensor& to) {
      if (task_should_compute_output(edge)) {
        to = tensor;
      }
    };
    want(2, experts.up, wanted.up);
    want(3, experts.down, wanted.down);
    want(4, experts.up_bias, wanted.up_bias);
    want(5, experts.down_bias, wanted.down_bias);
    ExpertsRun::Gradients gradients = run->backward(*state, x, grad_y, experts, wanted);
    return {gradients.rows,         gradients.weights,         gradients.experts.up,
            gradients.experts.down, gradients.experts.up_bias, gradients.experts.down_bias};
  }
};

}  // namespace

at::Tensor experts_function(const std::shared_ptr<ExpertsRun>& run, const ExpertsRun::Batch& batch,
                            const ExpertTensors& experts, std::int64_t& num_replicas) {
  const bool needs_grad = torch::autograd::compute_requires_grad(
      batch.rows, batch.weights, experts.up, experts.down, experts.up_bias, experts.down_bias);
  std::shared_ptr<ExpertsBackward> node;
  if (needs_grad) {
    node = std::shared_ptr<ExpertsBackward>(new ExpertsBackward(), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(
        batch.rows, batch.weights, experts.up, experts.down, experts.up_bias, experts.down_bias));
    node->run = run;
    node->rows = saved(batch.rows);
    node->up = saved(experts.up);
    node->down = saved(experts.down);
    node->up_bias = saved(experts.up_bias);
    node->down_bias = saved(experts.down_bias);
  }
  at::Tensor y;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    y = at::empty_like(batch.rows);
    auto state = run->forward(batch, experts, y, needs_grad);
    num_replicas = state->lists->sent.num_rows();
    if (needs_grad) {
      node->state = std::move(state);
    }
  }
  if (needs_grad) {
    torch::autograd::set_history(y, node);
  }
  return y;
}

}  // namespace coterie::nn
