// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "coterie/models/tensor_ledger.hpp"

namespace coterie::models {

/// Turns a checkpoint's tensors into values. F32, BF16 and F16 are taken as they are; a matrix in
/// F8_E4M3 "X.weight" [N, K] has its scales beside it, "X.weight_scale_inv" F32
/// [ceil(N / rows), ceil(K / columns)] for blocks of rows x columns:
///
///     w[n, k] = fp8[n, k] * scale[n / rows, k / columns]
///
/// (DeepSeek-V3's checkpoints). Without blocks in config.json, F8_E4M3 is refused.
class TensorValues {
 public:
  explicit TensorValues(std::optional<std::array<std::int64_t, 2>> blocks) : blocks_(blocks) {}

  /// In the type asked for: the mapped bytes themselves if they have it, else a copy.
  at::Tensor tensor(TensorLedger& ledger, const std::string& name,
                    std::initializer_list<std::int64_t> shape, at::ScalarType type) const;
  /// Only name, shape and type are checked; bytes are not touched.
  void check(TensorLedger& ledger, const std::string& name,
             std::initializer_list<std::int64_t> shape) const;
  /// Some matrices of a tensor [E, rows, columns]: each a copy at its place in `matrices`.
  void slices(TensorLedger& ledger, const std::string& name,
              std::initializer_list<std::int64_t> shape, const std::vector<std::int32_t>& wanted,
              std::vector<at::Tensor>& matrices, at::ScalarType type) const;

 private:
  [[nodiscard]] bool is_scaled(const TensorLedger& ledger, const std::string& name) const;
  const Tensor& take_scaled(TensorLedger& ledger, const std::string& name,
                            std::initializer_list<std::int64_t> shape, const Tensor*& scales) const;

  std::optional<std::array<std::int64_t, 2>> blocks_;
};

}  // namespace coterie::models
