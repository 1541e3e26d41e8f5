// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "bench/expert_layer_cpu/layer.hpp"

namespace coterie::bench {

/// Forward and backward of a layer: rows, then gradients of input rows and of all weights (fp32).
class TrainingStep {
 public:
  explicit TrainingStep(const Layer& layer);

  void run(const kernels::Execution& execution);

  [[nodiscard]] const Layer& layer() const { return layer_; }
  [[nodiscard]] double flops() const { return 3.0 * layer_.flops(); }
  /// dL/d(rows), [R, hidden], of the layer's type.
  [[nodiscard]] const void* grad_rows() const { return grad_rows_.data(); }
  [[nodiscard]] const std::vector<char>& grad_x_rows() const { return grad_x_rows_; }
  [[nodiscard]] const float* grad_gate_up(std::int64_t expert) const;
  [[nodiscard]] const float* grad_down(std::int64_t expert) const;

 private:
  struct Views;
  [[nodiscard]] std::int64_t expert_elements() const;

  const Layer& layer_;
  std::vector<char> grad_rows_, pre_, hidden_, rows_, grad_pre_, hidden_again_, grad_x_rows_;
  std::vector<float> gradients_;
};

/// The same through PyTorch's autograd: at::linear, silu and mul for each expert, then backward().
class AtLinearStep {
 public:
  AtLinearStep(const TrainingStep& step, int num_threads);
  ~AtLinearStep();
  AtLinearStep(const AtLinearStep&) = delete;
  AtLinearStep& operator=(const AtLinearStep&) = delete;
  void run();
  /// Largest difference of its gradients to those of `step`, over the gradient's size plus the root
  /// mean square of its kind.
  double difference();

 private:
  struct State;
  State* state_;
};

}  // namespace coterie::bench
