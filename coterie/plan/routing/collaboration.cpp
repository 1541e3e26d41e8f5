// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/collaboration.hpp"

#include <algorithm>

namespace coterie::routing {

Matrix<std::uint64_t> count_pairs(const ExpertSets& sets) {
  const auto num_experts = static_cast<std::size_t>(sets.num_experts);
  Matrix<std::uint64_t> pairs(num_experts, num_experts);
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    for (const std::uint16_t i : set) {
      const auto row = pairs.row(i);
      for (const std::uint16_t j : set) {
        row[j] += sets.tokens[s];
      }
    }
  }
  return pairs;
}

Matrix<double> collaboration_graph(const Matrix<std::uint64_t>& pairs) {
  COTERIE_CHECK(pairs.rows() == pairs.columns(), pairs.rows(), " x ", pairs.columns());
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < pairs.rows(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      most = std::max(most, pairs(i, j));
    }
  }
  Matrix<double> graph(pairs.rows(), pairs.columns());
  for (std::size_t i = 0; i < pairs.rows() && most > 0; ++i) {
    for (std::size_t j = 0; j < pairs.columns(); ++j) {
      graph(i, j) = i == j ? 0.0 : static_cast<double>(pairs(i, j)) / static_cast<double>(most);
    }
  }
  return graph;
}

}  // namespace coterie::routing
