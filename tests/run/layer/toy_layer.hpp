// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::layer {

/// A matrix that owns its values, random, in fp32 or bf16.
class Values {
 public:
  Values() = default;
  Values(Random& random, std::int64_t rows, std::int64_t columns, double scale,
         kernels::DType type = kernels::DType::kFloat32);
  [[nodiscard]] kernels::ConstMatrixView view() const;
  /// Rows [first, first + count).
  [[nodiscard]] kernels::ConstMatrixView view(std::int64_t first, std::int64_t count) const;
  /// For fp32 values.
  [[nodiscard]] float at(std::int64_t row, std::int64_t column) const {
    return floats_[static_cast<std::size_t>(row * columns_ + column)];
  }
  float& at(std::int64_t row, std::int64_t column) {
    return floats_[static_cast<std::size_t>(row * columns_ + column)];
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

/// A small random layer: options and the weights it owns.
struct ToyLayer {
  MoeOptions options;
  Values router;
  std::vector<Values> gate_up;
  std::vector<Values> down;

  ToyLayer(std::uint64_t seed, std::int32_t num_experts, std::int32_t top_k,
           kernels::DType type = kernels::DType::kFloat32, std::int64_t hidden = 24,
           std::int64_t intermediate = 20);
  /// Views of all experts' weights.
  [[nodiscard]] MoeWeights weights() const;
  /// Views of the experts of one device only.
  [[nodiscard]] MoeWeights weights(const std::vector<std::int32_t>& experts) const;
};

/// The rows of y as raw bytes, of a single process or of the rank.
std::vector<std::byte> forward(MoeLayer& layer, const kernels::ConstMatrixView& x,
                               RoutingRecord* record = nullptr);

/// fp32 values of such rows.
std::vector<float> floats_of(const std::vector<std::byte>& bytes);

}  // namespace coterie::layer
