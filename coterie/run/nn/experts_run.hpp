// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "coterie/run/layer/layer.hpp"
#include "coterie/run/nn/experts.hpp"
#include "coterie/run/nn/row_hooks.hpp"

/// Private to the room: the torch-free layer with a module's parameters.
namespace coterie::nn {

/// The tensors of the library's own experts; undefined where there is none.
struct ExpertTensors {
  at::Tensor up;         ///< [n, P, H]
  at::Tensor down;       ///< [n, H, s]
  at::Tensor up_bias;    ///< [n, P]
  at::Tensor down_bias;  ///< [n, H]
};

/// A layer::TrainingLayer whose experts are tensors. Graphs hold on to it, so it outlives the
/// module if it must.
class ExpertsRun {
 public:
  /// `options` are completed ones.
  explicit ExpertsRun(const MoELayerOptions& options, std::vector<std::int32_t> expert_ids);

  struct Batch {
    at::Tensor rows;     ///< [R, H] contiguous
    at::Tensor ids;      ///< int32 [R, k] contiguous
    at::Tensor weights;  ///< [R, k] contiguous, fp64 exactly if rows are
    std::vector<std::int64_t> source_offsets;
  };
  /// y [R, H]; `keep` false: nothing is kept for a backward beside the lists.
  std::unique_ptr<layer::TrainingState> forward(const Batch& batch, const ExpertTensors& experts,
                                                const at::Tensor& y, bool keep);

  struct Gradients {
    at::Tensor rows;
    at::Tensor weights;
    ExpertTensors experts;  ///< in the experts' type
  };
  /// Gradients of the experts for which `wanted` has a tensor defined.
  Gradients backward(layer::TrainingState& state, const at::Tensor& rows, const at::Tensor& grad_y,
                     const ExpertTensors& experts, const ExpertTensors& wanted);

  [[nodiscard]] layer::TrainingLayer& core() { return core_; }
  [[nodiscard]] exchange::RowHooks* hooks() { return row_hooks_ ? &*row_hooks_ : nullptr; }
  /// The routing of a batch as the core wants it; views stay valid until the next call.
  exchange::TokenRouting routing_of(const at::Tensor& ids);
  /// Bytes that have left this rank for a purpose, in its expert and shard groups.
  [[nodiscard]] std::uint64_t bytes_sent(comm::Purpose purpose) const;

 private:
  [[nodiscard]] std::vector<layer::DeviceExperts> views(const ExpertTensors& experts) const;
  [[nodiscard]] std::int64_t place_of(std::int32_t expert) const;

  Hooks hooks_;
  exchange::RankGroups groups_;
  std::vector<std::int32_t> expert_ids_;
  layer::TrainingLayer core_;
  std::optional<placement::ReplicaChooser> chooser_;
  std::optional<TensorRowHooks> row_hooks_;
  std::vector<std::int32_t> device_of_pick_;
};

}  // namespace coterie::nn
