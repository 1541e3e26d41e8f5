// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/plan/placement/placement.hpp"
#include "coterie/run/exchange/exchange.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::layer {

/// What the experts part of a trained layer is and how it runs.
struct TrainingOptions {
  std::string name = "MoE layer";  ///< begins every message, such as "layer 3"
  std::int64_t hidden = 0;         ///< H, width of a token
  std::int64_t intermediate = 0;   ///< I, width inside an expert as this process has it: its shard
  std::int32_t num_experts = 0;    ///< E
  kernels::Activation activation = kernels::Activation::kSwiGlu;
  exchange::ExchangeOptions exchange;
  /// Cuts of a batch, whole blocks of tokens each. The two are independent, and no number changes a
  /// bit of any result.
  std::int64_t forward_chunks = 1;
  std::int64_t backward_chunks = 1;
  /// Keeps neither received rows nor pre-activations: the backward fetches and computes them again,
  /// chunk by chunk, with the routing as it was. The same bits.
  bool recompute = false;
};

/// Throws kBadInput naming the layer and the value if a size does not make sense.
void check_training_options(const TrainingOptions& options);

/// The weights of the experts that one device holds, slot by slot (experts ascending), as views of
/// the caller's memory. P is 2I for SwiGLU (gate rows, then up rows), else I.
struct DeviceExperts {
  std::vector<kernels::ConstMatrixView> up;         ///< [slots] of [P, H]
  std::vector<kernels::ConstMatrixView> down;       ///< [slots] of [H, I]
  std::vector<kernels::ConstMatrixView> up_bias;    ///< [slots] of [1, P], or empty
  std::vector<kernels::ConstMatrixView> down_bias;  ///< [slots] of [1, H], or empty
};

/// Where their gradients go: same shapes, fp32 (fp64 where the rows are). A view without data is
/// not computed.
struct DeviceGradients {
  std::vector<kernels::MatrixView> up;
  std::vector<kernels::MatrixView> down;
  std::vector<kernels::MatrixView> up_bias;
  std::vector<kernels::MatrixView> down_bias;
};

/// What a forward leaves for its backward: lists, received rows, pre-activations. Nothing of the
/// size tokens x experts x H. It may outlive later forwards, so several batches may be under way.
struct TrainingState {
  std::shared_ptr<const exchange::TrainingLists> lists;
  bool keeps_rows = true;                         ///< false: inputs and pre are made again
  exchange::ArrivedRows inputs;                   ///< of all chunks; empty with recompute
  std::vector<exchange::ByteBuffer> pre;          ///< [local devices] [entries, P]
  std::vector<std::vector<std::int32_t>> pre_at;  ///< [local devices][entries] row of pre

  /// Bytes of rows and pre-activations held.
  [[nodiscard]] std::size_t bytes_held() const;
};

/// One batch of one process.
struct TrainingBatch {
  kernels::ConstMatrixView x;        ///< [T, H] fp64, fp32 or bf16; must outlive the backward
  exchange::TokenRouting routing;    ///< ids (and devices); weights are not read
  kernels::ConstMatrixView weights;  ///< [T, k] fp32, or fp64 with fp64 rows
  std::span<const std::int64_t> source_offsets;  ///< as TrainingExchange::make_lists
  bool keep = true;  ///< false: no backward will follow; only the lists are kept
};

struct TrainingPart;

/// Experts behind an exchange, forward and backward:
///
///     y[t] = sum over the picks (e, w) of t of w * (down_e act(up_e x[t] + b_e) + c_e)
///
/// Weight gradients are one chain of sums over the rows in the order (block of position, source
/// rank, token): docs/design/017. Every rank makes the same collectives whatever the routing. Not
/// thread-safe.
class TrainingLayer {
 public:
  /// Groups and the pool in `execution` must outlive the layer; `movement` null: FSMoE's. Throws
  /// kBadInput naming layer and value.
  TrainingLayer(TrainingOptions options, placement::LayerPlacement placement,
                exchange::RankGroups groups, const kernels::Execution& execution = {},
                std::shared_ptr<exchange::RowMovement> movement = {});

  /// y [T, H] of x's type. `experts` [local devices]. kBadInput names experts that do not fit.
  std::unique_ptr<TrainingState> forward(const TrainingBatch& batch,
                                         std::span<const DeviceExperts> experts,
                                         kernels::MatrixView y,
                                         exchange::RowHooks* hooks = nullptr);

  /// What comes out of a backward; all is overwritten.
  struct Results {
    kernels::MatrixView grad_x;        ///< [T, H] of x's type
    kernels::MatrixView grad_weights;  ///< [T, k] of the weights' type; exact 0 for an id of -1
    std::span<const DeviceGradients> experts;  ///< [local devices]; idle experts get exact zeros
  };
  /// grad_y [T, H] of x's type. The state stays as it is: a second call gives the same.
  void backward(TrainingState& state, kernels::ConstMatrixView x, kernels::ConstMatrixView grad_y,
                std::span<const DeviceExperts> experts, const Results& results,
                exchange::RowHooks* hooks = nullptr);

  [[nodiscard]] const TrainingOptions& options() const { return options_; }
  [[nodiscard]] const exchange::PlacementIndex& index() const { return *index_; }
  [[nodiscard]] std::span<const std::int32_t> local_devices() const {
    return exchange_->local_devices();
  }
  [[nodiscard]] exchange::TrainingExchange& exchange() { return *exchange_; }
  [[nodiscard]] const kernels::Execution& execution() const { return execution_; }

 private:
  struct BackwardDevice;
  void check_experts(std::span<const DeviceExperts> experts) const;
  TrainingPart prepare(const exchange::DeviceLists& device, const exchange::ChunkRows& chunk,
                       std::int64_t first_row, std::int64_t end_row);
  kernels::MatrixView up(const TrainingPart& part, const kernels::ConstMatrixView& inputs,
                         const DeviceExperts& experts, const kernels::MatrixView& pre);
  void forward_device(std::size_t i, TrainingState& state, const DeviceExperts& experts,
                      const exchange::ChunkRows& chunk);
  void backward_device(const BackwardDevice& task);
  kernels::ConstMatrixView pre_of(const BackwardDevice& task, const TrainingPart& part,
                                  std::span<const std::int32_t> input_of);

  TrainingOptions options_;
  kernels::Execution execution_;
  bool adds_down_bias_;                              // the first shard does
  std::unique_ptr<exchange::PlacementIndex> index_;  // in place: the exchange refers to it
  std::unique_ptr<exchange::TrainingExchange> exchange_;

  exchange::ReceiveLists lists_;
  std::vector<std::int32_t> input_of_;
  std::vector<std::int32_t> entry_of_;
  std::vector<std::int32_t> rows_again_;
  std::vector<std::int32_t> pre_rows_;
  exchange::ArrivedRows gradients_;
  exchange::ArrivedRows inputs_again_;
  exchange::ByteBuffer hidden_;
  exchange::ByteBuffer outputs_;
  exchange::ByteBuffer pre_;
  exchange::ByteBuffer grad_pre_;
};

}  // namespace coterie::layer
