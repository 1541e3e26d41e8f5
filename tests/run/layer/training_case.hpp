// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::layer {

/// A matrix that owns its bytes, of any type of the kernels.
class Block {
 public:
  Block() = default;
  /// All NaN, so that what nobody wrote shows.
  Block(std::int64_t rows, std::int64_t columns, kernels::DType type);
  /// Normal numbers that bf16 holds exactly, so that all types hold the same.
  static Block random(std::uint64_t seed, std::int64_t rows, std::int64_t columns,
                      kernels::DType type, double scale);

  [[nodiscard]] kernels::MatrixView view();
  [[nodiscard]] kernels::ConstMatrixView view() const;
  /// Rows [first, first + count).
  [[nodiscard]] kernels::ConstMatrixView rows(std::int64_t first, std::int64_t count) const;
  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const;
  void set(std::int64_t row, std::int64_t column, double value);
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;
  std::vector<std::byte> bytes_;
};

/// The tokens of all ranks, one rank's after the other's, with a routing, and the experts.
struct TrainingCase {
  TrainingOptions options;  ///< intermediate: of whole experts
  kernels::DType type = kernels::DType::kFloat32;
  placement::LayerPlacement placement;
  std::vector<std::int64_t> offsets;  ///< [ranks + 1] tokens of each rank
  std::int32_t top_k = 0;
  std::vector<std::int32_t> ids;      ///< [T, k]
  std::vector<std::int32_t> devices;  ///< [T, k]
  Block x;
  Block weights;  ///< NaN beside an id of -1
  Block grad_y;
  std::vector<Block> up;  ///< [E] whole experts
  std::vector<Block> down;
  std::vector<Block> up_bias;  ///< empty for SwiGLU
  std::vector<Block> down_bias;

  [[nodiscard]] std::int64_t num_tokens() const { return offsets.back(); }
  [[nodiscard]] int num_ranks() const { return static_cast<int>(offsets.size()) - 1; }
};

/// Ragged ranks (one without tokens), several blocks, ids of -1, an idle expert, and with `copies`
/// two experts on two devices.
TrainingCase training_case(std::uint64_t seed, int num_devices, kernels::DType type,
                           kernels::Activation activation, bool copies = false,
                           std::int64_t token_factor = 1);

/// All that a forward and a backward give, as bytes: of one rank, or of one process for all.
struct TrainingOutcome {
  Block y;
  Block grad_x;
  Block grad_weights;
  std::vector<std::vector<std::byte>> experts;  ///< [devices here * slots * parameters]
};

/// Where it runs.
struct TrainingRun {
  exchange::RankGroups groups;
  std::int64_t first_token = 0;  ///< of the case's tokens
  std::int64_t end_token = 0;
  kernels::Execution execution;
  exchange::RowHooks* hooks = nullptr;
  std::optional<schedule::LayerPlan> plan;
  LayerRun layer_run;
  std::shared_ptr<exchange::RowMovement> movement;
};

TrainingOutcome run_training(const TrainingCase& made, const TrainingRun& run);

/// One process that stands for all ranks.
TrainingOutcome run_alone(const TrainingCase& made, const kernels::Execution& execution = {});
/// Ranks in threads: [ranks].
std::vector<TrainingOutcome> run_as_ranks(const TrainingCase& made);

/// Joins the ranks' rows and gradients into what one process gives.
TrainingOutcome joined(const std::vector<TrainingOutcome>& ranks);

/// Empty if both are equal to the last bit, else what differs first.
std::string difference(const TrainingOutcome& a, const TrainingOutcome& b);

}  // namespace coterie::layer
