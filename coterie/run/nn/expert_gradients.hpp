// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "coterie/run/layer/layer.hpp"

/// Private to the room.
namespace coterie::nn {

struct ExpertTensors;

/// Where the core adds up the experts' gradients: in fp32 (fp64 for fp64), one sum a device, so
/// that the copies of an expert on several devices of this process add up in ascending device
/// number.
class ExpertGradients {
 public:
  /// `like` holds the tensors whose gradients are wanted, experts in the order `expert_ids`.
  ExpertGradients(const layer::TrainingLayer& core, const std::vector<std::int32_t>& expert_ids,
                  const ExpertTensors& like);
  [[nodiscard]] std::span<const layer::DeviceGradients> views() const { return views_; }
  /// The gradients in the type of what they are gradients of. With a `group` each expert's sum runs
  /// over the ranks that hold a copy: then all ranks must call it, with the same parameters wanted.
  [[nodiscard]] ExpertTensors finish(comm::Communicator* group) const;

 private:
  /// One parameter's sums.
  struct Sums {
    at::Tensor first;                ///< [n, ...] sum of the lowest device of each expert
    std::vector<at::Tensor> others;  ///< of further copies, devices ascending
    std::vector<std::int64_t> place_of_other;
    at::ScalarType type = at::kFloat;
  };
  Sums make(const at::Tensor& like,
            std::vector<kernels::MatrixView> layer::DeviceGradients::*views);
  [[nodiscard]] at::Tensor total(const Sums& sums, comm::Communicator* group) const;

  const layer::TrainingLayer& core_;
  const std::vector<std::int32_t>& expert_ids_;
  std::vector<layer::DeviceGradients> views_;
  Sums up_;
  Sums down_;
  Sums up_bias_;
  Sums down_bias_;
};

}  // namespace coterie::nn
