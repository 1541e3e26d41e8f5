// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coterie/base/matrix.hpp"

namespace coterie::pruning {

/// How alike two experts are, from their columns h_i, h_j over the tokens of a profile.
enum class Measure : std::uint8_t {
  kCosine,         ///< <h_i, h_j> / (|h_i| |h_j|) (Occult, Eq. 6)
  kCentredCosine,  ///< the same with each column's mean taken off: the correlation
  kSquaredCosine,  ///< the square of kCosine (Occult, Eq. 7): opposites count as alike
};

std::string_view name_of(Measure measure) noexcept;
/// kBadInput, naming those that exist, for any other name.
Measure measure_of(std::string_view name);

/// [E, E] symmetric; the diagonal is 1. An expert whose column is all zero (or constant, centred)
/// has similarity 0 to the others.
using SimilarityTable = Matrix<double>;

/// Sums what similarities need, token by token, in double: nothing of size tokens x experts is
/// kept, and the batches in which tokens come do not matter. Columns are router logits, or any
/// other value of each expert on each token. Not thread-safe.
class SimilarityProfile {
 public:
  explicit SimilarityProfile(std::int32_t num_experts);

  /// Adds the values [tokens, E] of some tokens, row by row.
  void add(std::span<const float> values);
  /// For experts' outputs, where each expert gives a vector a token: adds the inner products
  /// [E, E] of the outputs of one or several tokens. Only kCosine and kSquaredCosine are defined
  /// then (kBadInput for kCentredCosine).
  void add_products(const Matrix<double>& products);

  [[nodiscard]] std::uint64_t num_tokens() const { return num_tokens_; }
  /// kBadInput if no token was added.
  [[nodiscard]] SimilarityTable table(Measure measure) const;

 private:
  std::size_t num_experts_;
  std::uint64_t num_tokens_ = 0;
  bool has_products_ = false;
  Matrix<double> products_;   // [E, E] sums of v_i v_j, lower triangle and diagonal
  std::vector<double> sums_;  // [E]
};

}  // namespace coterie::pruning
