// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/training/recipe.hpp"

namespace coterie::training {

/// Memory that one thing needs on a rank.
struct MemoryItem {
  std::string name;
  std::int64_t num_bytes = 0;
  std::string formula;  ///< how it was reckoned
  bool operator==(const MemoryItem&) const = default;
};

/// The predicted peak of the rank that needs most, in the pipeline stage that needs most.
struct MemoryPlan {
  std::int64_t world_size = 1;
  std::vector<MemoryItem> items;
  [[nodiscard]] std::int64_t total() const;
  bool operator==(const MemoryPlan&) const = default;
};

/// Predicts the peak memory of a rank without allocating it. The load of experts is taken as even.
/// The process itself counts as much as this one has resident now. `data_bytes`: of the token
/// streams.
MemoryPlan plan_memory(const Recipe& recipe, std::int64_t data_bytes);

std::string to_text(const MemoryPlan& plan);
Json to_json(const MemoryPlan& plan);

}  // namespace coterie::training
