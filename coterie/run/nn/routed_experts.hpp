// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "coterie/run/nn/moe_layer_options.hpp"

namespace coterie::layer {
struct TrainingState;
}

namespace coterie::nn {

class ExpertsRun;

/// The experts of a layer without gate, without parameters and without autograd: for callers that
/// route by themselves and own the weights, such as another framework's module. Forward and
/// backward are those of MoELayer, to the last bit.
class RoutedExperts {
 public:
  /// Of `options` count name, hidden, intermediate, num_experts, expert_kind, placement, the
  /// groups, exchange, chunks, recompute, execution and type; gate and order are not read.
  /// kBadInput or kUnsupported name the layer, the field and the value.
  explicit RoutedExperts(MoELayerOptions options);
  ~RoutedExperts();
  RoutedExperts(const RoutedExperts&) = delete;
  RoutedExperts& operator=(const RoutedExperts&) = delete;

  struct Batch {
    at::Tensor rows;     ///< [T, H] of the layer's type
    at::Tensor ids;      ///< int32 [T, k] global expert ids; -1: none
    at::Tensor weights;  ///< [T, k] fp32, or fp64 with fp64 rows
  };
  struct Weights {
    at::Tensor up;    ///< [n, P, H] of the experts held, ascending ids; P = 2I for SwiGLU
    at::Tensor down;  ///< [n, H, I]
  };
  struct Forward {
    at::Tensor y;  ///< [T, H] of the rows' type
    std::shared_ptr<layer::TrainingState> state;
  };
  /// T may be 0 and differ between ranks. All ranks of the group call it together. `keep` false: no
  /// backward will follow. kBadInput for shapes, types and ids that do not fit.
  Forward forward(const Batch& batch, const Weights& weights, bool keep);

  struct Gradients {
    at::Tensor rows;     ///< [T, H] of this rank's loss
    at::Tensor weights;  ///< [T, k] of this rank's loss
    at::Tensor up;       ///< like Weights::up, of all ranks' losses together
    at::Tensor down;     ///< like Weights::down
  };
  /// grad_y [T, H]. All ranks call it together.
  Gradients backward(layer::TrainingState& state, const Batch& batch, const at::Tensor& grad_y,
                     const Weights& weights);

  [[nodiscard]] const MoELayerOptions& options() const { return options_; }
  /// Global ids of the experts whose weights this process passes, ascending.
  [[nodiscard]] const std::vector<std::int32_t>& expert_ids() const { return expert_ids_; }
  /// Rows sent to devices, the own one included, and tokens, of all forwards so far.
  [[nodiscard]] std::int64_t num_replicas() const { return num_replicas_; }
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }
  /// Bytes that have left this rank for a purpose.
  [[nodiscard]] std::uint64_t bytes_sent(comm::Purpose purpose) const;

 private:
  void check(const Batch& batch, const Weights& weights) const;

  MoELayerOptions options_;
  std::vector<std::int32_t> expert_ids_;
  std::unique_ptr<ExpertsRun> run_;
  std::int64_t num_replicas_ = 0;
  std::int64_t num_tokens_ = 0;
};

}  // namespace coterie::nn
