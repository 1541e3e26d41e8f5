// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::bench {

/// Sizes of one MoE layer's experts on one device.
struct LayerShape {
  std::string name;
  std::int64_t hidden_size = 0;
  std::int64_t inner_size = 0;
  std::int64_t num_experts = 0;  ///< a share of the model's: more bytes than the last-level cache
};

/// Experts with random weights, the same number of rows each, and the outputs of both halves.
class Layer {
 public:
  Layer(LayerShape shape, kernels::DType type);

  /// Gives each expert this many random rows.
  void set_rows(std::int64_t rows_per_expert);

  void run(const kernels::Execution& execution);
  /// Largest difference to the reference back end over `num_rows` rows of each expert, as a share
  /// of the outputs' root mean square.
  double difference_to_reference(std::int64_t num_rows);

  [[nodiscard]] const LayerShape& shape() const { return shape_; }
  [[nodiscard]] kernels::DType type() const { return type_; }
  [[nodiscard]] std::int64_t num_rows() const { return offsets_.back(); }
  [[nodiscard]] double flops() const;
  [[nodiscard]] double weight_bytes() const;

  // For the at::linear twin.
  [[nodiscard]] const void* x() const { return x_.data(); }
  [[nodiscard]] const void* gate_up(std::int64_t expert) const;
  [[nodiscard]] const void* down(std::int64_t expert) const;
  [[nodiscard]] const std::vector<std::int32_t>& row_of() const { return row_of_; }
  [[nodiscard]] const std::vector<std::int64_t>& offsets() const { return offsets_; }
  [[nodiscard]] const std::vector<float>& rows() const { return rows_; }

 private:
  [[nodiscard]] std::int64_t expert_bytes() const;

  LayerShape shape_;
  kernels::DType type_;
  std::vector<char> weights_;
  std::vector<char> x_;
  std::vector<char> hidden_;
  std::vector<float> rows_;
  std::vector<std::int32_t> row_of_;
  std::vector<std::int64_t> offsets_ = {0};
};

/// The same layer as PyTorch users write it: index_select, at::linear, silu, mul, at::linear for
/// each expert, on `num_threads` threads. Absent in builds without libtorch.
class AtLinearLayer {
 public:
  static bool is_available();
  static std::string version();
  AtLinearLayer(const Layer& layer, int num_threads);
  ~AtLinearLayer();
  AtLinearLayer(const AtLinearLayer&) = delete;
  AtLinearLayer& operator=(const AtLinearLayer&) = delete;
  void run();
  /// Largest difference of its rows to those of `layer`, as a share of their root mean square.
  double difference();

 private:
  struct State;
  State* state_;
};

}  // namespace coterie::bench
