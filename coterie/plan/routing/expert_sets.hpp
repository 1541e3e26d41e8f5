// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace coterie::routing {

/// The distinct sets of experts that the tokens of one MoE layer chose, each with the number of
/// tokens that chose it: the weighted hyperedges of the collaboration graph (Occult, section 3.2,
/// keeps only pairs). Sets are stored one after another, ids ascending inside a set, sets in
/// lexicographic order, so that equal content is equal bytes.
struct ExpertSets {
  std::int32_t num_experts = 0;
  std::vector<std::uint32_t> offsets = {0};  ///< [num_sets + 1] into `experts`
  std::vector<std::uint16_t> experts;        ///< expert ids of all sets
  std::vector<std::uint32_t> tokens;         ///< [num_sets] tokens that chose the set, > 0

  [[nodiscard]] std::size_t num_sets() const { return tokens.size(); }
  [[nodiscard]] std::span<const std::uint16_t> set(std::size_t i) const {
    return std::span(experts).subspan(offsets[i], offsets[i + 1] - offsets[i]);
  }
  /// Number of tokens, repeated sets counted as often as they were chosen.
  [[nodiscard]] std::uint64_t num_tokens() const;
  /// Number of (token, expert) pairs.
  [[nodiscard]] std::uint64_t num_picks() const;
  /// [num_experts] tokens that chose each expert.
  [[nodiscard]] std::vector<std::uint64_t> expert_loads() const;

  bool operator==(const ExpertSets&) const = default;
};

/// An id that means "no expert": how a -1 is stored.
inline constexpr std::uint16_t kNoExpert = 0xFFFF;

/// Sorts and counts rows of ids. `ids` is [num_tokens, top_k] row-major; kNoExpert means "no
/// expert". Rows without any expert are left out. Throws kBadInput for an id outside
/// [0, num_experts) and for an expert that stands twice in a row, naming the row.
ExpertSets make_expert_sets(std::span<const std::uint16_t> ids, std::int32_t top_k,
                            std::int32_t num_experts);

/// The same by the obvious way, several times slower: what make_expert_sets is tested against.
ExpertSets make_expert_sets_reference(std::span<const std::uint16_t> ids, std::int32_t top_k,
                                      std::int32_t num_experts);

/// Throws kBadInput, naming `where` and the row, for an id that is neither in [0, num_experts) nor
/// kNoExpert, and for an expert that stands twice in a row. `ids` is [rows, top_k].
void check_rows(std::span<const std::uint16_t> ids, std::int32_t top_k, std::int32_t num_experts,
                const std::string& where);

}  // namespace coterie::routing
