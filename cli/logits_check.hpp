// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/parallel_run.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/base/matrix.hpp"
#include "coterie/models/models.hpp"

namespace coterie::cli {

/// What tokens chose in all MoE layers of one forward pass.
struct RoutingOfStep {
  std::vector<std::int32_t> layers;  ///< [layers] their numbers
  std::int32_t top_k = 0;
  std::vector<std::vector<std::int32_t>> ids;  ///< [layers][tokens x top_k]
  std::vector<std::vector<float>> weights;     ///< the same

  void add(const models::LayerRouting& routing);
};

/// What one rank computed in one step.
struct StepOutput {
  Matrix<float> logits;  ///< [tokens, vocabulary]
  RoutingOfStep routing;
  bool is_repeated = true;  ///< a second run gave the same bits

  /// As bytes, for another rank.
  [[nodiscard]] std::vector<std::byte> pack() const;
  static StepOutput unpack(std::span<const std::byte> bytes);
};

/// One process computes each step by itself, and compares.
class OneProcessCheck {
 public:
  OneProcessCheck(const std::filesystem::path& model, const models::DecoderOptions& same_placement,
                  const models::DecoderOptions& no_placement);

  /// `parts[r]` is what rank r packed; sequence s of the step belongs to rank s mod ranks. `first`
  /// is the number of the step's first sequence.
  void compare(std::span<const std::vector<std::int32_t>> step, std::int64_t first,
               std::span<const std::vector<std::byte>> parts, LogitsCheck& check);

  [[nodiscard]] std::string digest() const { return digest_.hex(); }

 private:
  models::Decoder same_;
  models::Decoder plain_;
  Hash digest_;
};

}  // namespace coterie::cli
