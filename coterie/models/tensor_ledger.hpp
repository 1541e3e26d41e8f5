// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "coterie/models/checkpoint.hpp"

namespace coterie::models {

/// Hands out a checkpoint's tensors by name and shape and keeps book, so that every tensor of the
/// model is found in the file and every tensor of the file has its place in the model.
class TensorLedger {
 public:
  explicit TensorLedger(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// The tensor; kBadInput if it is missing or has another shape, kUnsupported if its type is not
  /// F32, BF16 or F16.
  const Tensor& take(const std::string& name, std::span<const std::int64_t> shape);
  const Tensor& take(const std::string& name, std::initializer_list<std::int64_t> shape) {
    return take(name, std::span(shape.begin(), shape.size()));
  }
  [[nodiscard]] bool has(const std::string& name) const { return checkpoint_.find(name); }
  /// The one of these names that the checkpoint has; the first if it has none (so that `take` says
  /// what is missing).
  [[nodiscard]] std::string existing(const std::vector<std::string>& names) const;
  /// The tensor is known and not needed.
  void pass_over(const std::string& name) { taken_.insert(name); }
  /// So are all tensors whose names begin so.
  void pass_over_prefix(const std::string& prefix);
  /// As take(), of a tensor of one given type; kUnsupported for another one.
  const Tensor& take_as(const std::string& name, std::span<const std::int64_t> shape,
                        ElementType type);
  /// The type of a tensor; nothing if it is missing.
  [[nodiscard]] std::optional<ElementType> type_of(const std::string& name) const;
  /// "FILE: tensor "NAME"" for messages.
  [[nodiscard]] std::string place(const std::string& name) const;
  /// kBadInput if tensors are left over, naming the first ones.
  void finish() const;

 private:
  const Tensor& take_any(const std::string& name, std::span<const std::int64_t> shape);

  const Checkpoint& checkpoint_;
  std::set<std::string> taken_;
};

}  // namespace coterie::models
