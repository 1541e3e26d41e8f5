// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/selection.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/base/random.hpp"

namespace coterie::routing {
namespace {

/// Whether item `i` of a row of items belongs to the share that is fitted on; the fitted items lie
/// as evenly as they can, the first among them.
bool is_in_even_share(std::uint64_t i, double share) {
  const auto before = static_cast<std::uint64_t>(static_cast<double>(i) * share + (1 - share));
  const auto after = static_cast<std::uint64_t>(static_cast<double>(i + 1) * share + (1 - share));
  return after > before;
}

bool counts(const TokenInfo& token) {
  return (token.flags & (kPadding | kWarmUp)) == 0;
}

std::vector<bool> fitted_by_time(const std::vector<TokenInfo>& tokens, double share) {
  std::map<std::uint16_t, std::uint64_t> total;
  for (const TokenInfo& token : tokens) {
    total[token.domain] += counts(token) ? 1 : 0;
  }
  std::map<std::uint16_t, std::uint64_t> seen;
  std::vector<bool> fitted(tokens.size());
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    if (counts(tokens[r])) {
      const auto before = static_cast<double>(seen[tokens[r].domain]++);
      fitted[r] = before < share * static_cast<double>(total[tokens[r].domain]);
    }
  }
  return fitted;
}

std::vector<bool> fitted_by_sequence(const std::vector<TokenInfo>& tokens, double share) {
  std::map<std::uint16_t, std::uint64_t> sequences_of_domain;
  std::unordered_map<std::uint32_t, bool> fitted_sequence;
  std::vector<bool> fitted(tokens.size());
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto found = fitted_sequence.find(tokens[r].sequence);
    if (found != fitted_sequence.end()) {
      fitted[r] = found->second;
    } else if (counts(tokens[r])) {
      fitted[r] = is_in_even_share(sequences_of_domain[tokens[r].domain]++, share);
      fitted_sequence.emplace(tokens[r].sequence, fitted[r]);
    }
  }
  return fitted;
}

std::vector<bool> fitted_rows(const std::vector<TokenInfo>& tokens, const Selection& selection) {
  switch (selection.split) {
    case Split::kTime: return fitted_by_time(tokens, selection.fit_share);
    case Split::kSequence: return fitted_by_sequence(tokens, selection.fit_share);
    case Split::kParity: break;
  }
  std::vector<bool> fitted(tokens.size());
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    fitted[r] = tokens[r].position % 2 == 0;
  }
  return fitted;
}

/// Keeps `count` of the rows, each choice as likely as any other, in their order.
void sample(std::vector<std::uint32_t>& rows, std::uint64_t count, std::uint64_t seed) {
  if (count == 0 || rows.size() <= count) {
    return;
  }
  Random random(seed);
  std::uint64_t needed = count;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (random.below(rows.size() - i) < needed) {
      rows[kept++] = rows[i];
      --needed;
    }
  }
  rows.resize(kept);
}

}  // namespace

Json to_json(const DroppedRows& dropped) {
  return Json{{"padding", dropped.padding},
              {"warm_up", dropped.warm_up},
              {"without_expert", dropped.without_expert}};
}

DroppedRows count_dropped(const LayerTrace& layer) {
  DroppedRows dropped;
  for (std::size_t r = 0; r < layer.num_rows(); ++r) {
    const std::uint16_t flags = (*layer.tokens)[r].flags;
    const auto row = layer.row(r);
    if ((flags & kPadding) != 0) {
      ++dropped.padding;
    } else if ((flags & kWarmUp) != 0) {
      ++dropped.warm_up;
    } else if (std::all_of(row.begin(), row.end(), [](auto id) { return id == kNoExpert; })) {
      ++dropped.without_expert;
    }
  }
  return dropped;
}

std::vector<std::uint32_t> select_rows(const LayerTrace& layer, const Selection& selection) {
  COTERIE_REQUIRE(selection.fit_share > 0 && selection.fit_share < 1, "the share to fit on is ",
                  selection.fit_share, ", not between 0 and 1");
  std::vector<std::uint32_t> rows;
  if (layer.num_rows() == 0) {
    return rows;
  }
  const std::vector<TokenInfo>& tokens = *layer.tokens;
  const std::vector<bool> fitted =
      selection.part == Part::kAll ? std::vector<bool>() : fitted_rows(tokens, selection);
  const bool wanted = selection.part == Part::kFit;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    if (counts(tokens[r]) && (!selection.domain || tokens[r].domain == *selection.domain) &&
        (fitted.empty() || fitted[r] == wanted)) {
      rows.push_back(static_cast<std::uint32_t>(r));
    }
  }
  sample(rows, selection.max_rows, selection.seed);
  return rows;
}

ExpertSets select_sets(const LayerTrace& layer, const Selection& selection) {
  if (layer.counts) {
    if (selection.part != Part::kHeldOut) {
      return *layer.counts;
    }
    ExpertSets none;
    none.num_experts = layer.num_experts;
    return none;
  }
  const std::vector<std::uint32_t> rows = select_rows(layer, selection);
  if (rows.size() == layer.num_rows()) {
    return make_expert_sets(layer.ids, layer.top_k, layer.num_experts);
  }
  std::vector<std::uint16_t> ids;
  ids.reserve(rows.size() * static_cast<std::size_t>(layer.top_k));
  for (const std::uint32_t r : rows) {
    const auto row = layer.row(r);
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return make_expert_sets(ids, layer.top_k, layer.num_experts);
}

}  // namespace coterie::routing
