// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/chunked_loss.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/run/device/device.hpp"

namespace coterie::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The rows that have a target, and it.
struct Chunk {
  at::Tensor rows;     // [n, H]
  at::Tensor targets;  // [n, 1], 0 where there is none
  at::Tensor counts;   // [n, 1] 1, or 0 where there is none
};

Chunk chunk_of(const at::Tensor& x, const at::Tensor& targets, std::int64_t begin,
               std::int64_t end) {
  const at::Tensor column = targets.slice(0, begin, end).unsqueeze(1);
  return {x.slice(0, begin, end), column.clamp_min(0), column.ge(0).to(sum_type(x))};
}

bool has_loss_kernel(const at::Tensor& x) {
  return kernels::cuda::is_built() && x.is_cuda() &&
         (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
}

/// Sum of the losses of some rows; their logits become d loss / d logits if wanted. One kernel that
/// reads the logits where they are, so that they are there once and in their own type.
at::Tensor losses_on_gpu(at::Tensor& logits, const at::Tensor& targets, bool with_gradient) {
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const at::Tensor wanted = targets.contiguous();
  kernels::cuda::CrossEntropy task;
  task.logits = device::mutable_view_of(logits);
  task.targets = wanted.const_data_ptr<std::int64_t>();
  task.loss = losses.mutable_data_ptr<float>();
  task.with_gradient = with_gradient;
  kernels::cuda::cross_entropy(task, device::current_stream(logits.device()));
  return losses.sum();
}

struct ChunkedLoss : Function<ChunkedLoss> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& w,
                          const Variable& targets, std::int64_t chunk, bool with_gradients) {
    const at::ScalarType type = sum_type(x);
    at::Tensor loss = at::zeros({}, x.options().dtype(type));
    at::Tensor x_gradient;
    at::Tensor w_gradient;
    const bool fused = has_loss_kernel(x);
    const bool is_one_chunk = fused && x.size(0) <= chunk && x.size(0) > 0;
    if (with_gradients) {
      x_gradient = at::empty_like(x);
      if (!is_one_chunk) {
        w_gradient = at::zeros(w.sizes(), w.options().dtype(type));
      }
    }
    for (std::int64_t begin = 0; begin < x.size(0); begin += chunk) {
      const std::int64_t end = std::min(x.size(0), begin + chunk);
      if (fused) {
        const at::Tensor rows = x.slice(0, begin, end);
        at::Tensor gradient = at::mm(rows, w.t());  // logits, then d loss / d logits
        loss += losses_on_gpu(gradient, targets.slice(0, begin, end), with_gradients);
        if (with_gradients) {
          at::Tensor x_rows = x_gradient.slice(0, begin, end);
          at::mm_out(x_rows, gradient, w);
          if (is_one_chunk) {
            w_gradient = at::mm(gradient.t(), rows);
          } else {
            w_gradient.add_(at::mm(gradient.t(), rows));
          }
        }
        continue;
      }
      const Chunk part = chunk_of(x, targets, begin, end);
      at::Tensor logits = at::mm(part.rows, w.t()).to(type);  // [n, V]
      const at::Tensor log_sum = at::logsumexp(logits, 1, /*keepdim=*/true);
      loss += ((log_sum - logits.gather(1, part.targets)) * part.counts).sum();
      if (!with_gradients) {
        continue;
      }
      // d loss / d logits = softmax - one-hot, 0 in rows without a target.
      logits.sub_(log_sum).exp_().mul_(part.counts);
      logits.scatter_add_(1, part.targets, -part.counts);
      const at::Tensor narrow = logits.to(x.scalar_type());
      at::Tensor rows = x_gradient.slice(0, begin, end);
      at::mm_out(rows, narrow, w);
      if (w.scalar_type() == type) {
        w_gradient.addmm_(narrow.t(), part.rows);
      } else {
        w_gradient.add_(at::mm(narrow.t(), part.rows));
      }
    }
    context->save_for_backward({x_gradient, w_gradient});
    context->saved_data["type"] = static_cast<std::int64_t>(w.scalar_type());
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const at::Tensor factor = gradients[0].to(sum_type(saved[0]));
    const at::Tensor x_gradient = saved[0].is_cuda()
                                      ? (saved[0] * factor).to(saved[0].scalar_type())
                                      : saved[0] * gradients[0].to(saved[0].scalar_type());
    const at::Tensor w_gradient =
        saved[1].is_cuda() ? (saved[1] * factor).to(type) : (saved[1] * gradients[0]).to(type);
    return {x_gradient, w_gradient, {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                             std::int64_t chunk, bool reference) {
  COTERIE_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) &&
                    x.scalar_type() == w.scalar_type() && targets.numel() == x.size(0),
                "loss of ", x.toString(), " ", x.sizes(), " and ", w.sizes());
  COTERIE_REQUIRE(chunk >= 1, "loss: chunk = ", chunk, " rows must be at least 1");
  if (reference) {
    const at::Tensor logs = at::log_softmax(at::mm(x, w.t()).to(sum_type(x)), 1);
    const Chunk all = chunk_of(x, targets, 0, x.size(0));
    return -(logs.gather(1, all.targets) * all.counts).sum();
  }
  const bool with_gradients =
      at::GradMode::is_enabled() && (x.requires_grad() || w.requires_grad());
  return ChunkedLoss::apply(x, w, targets, chunk, with_gradients);
}

}  // namespace coterie::models
