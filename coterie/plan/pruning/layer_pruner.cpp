// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/layer_pruner.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::pruning {
namespace {

/// For each expert the others, most similar first, ties to the lower id.
std::vector<std::vector<std::int32_t>> rank_similar(const SimilarityTable& table) {
  std::vector<std::vector<std::int32_t>> ranked(table.rows());
  for (std::size_t e = 0; e < ranked.size(); ++e) {
    auto& order = ranked[e];
    order.resize(table.rows());
    std::iota(order.begin(), order.end(), 0);
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(e));
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return table(e, static_cast<std::size_t>(a)) > table(e, static_cast<std::size_t>(b));
    });
  }
  return ranked;
}

double sum_of(std::span<const float> weights) {
  double sum = 0;
  for (const float weight : weights) {
    sum += static_cast<double>(weight);
  }
  return sum;
}

}  // namespace

LayerPruner::LayerPruner(const placement::LayerPlacement& placement, const PruningOptions& options,
                         const Budget& budget, const SimilarityTable* similarity)
    : limit_(placement, options.device_choice, budget),
      replacement_(options.replacement),
      weights_(options.weights) {
  if (replacement_ != Replacement::kSimilarity) {
    return;
  }
  COTERIE_REQUIRE(similarity != nullptr, "replacement \"similarity\" needs a similarity table");
  const auto num_experts = static_cast<std::size_t>(placement.num_experts);
  COTERIE_REQUIRE(similarity->rows() == num_experts && similarity->columns() == num_experts,
                  "the similarity table is [", similarity->rows(), ", ", similarity->columns(),
                  "], the placement has ", num_experts, " experts");
  most_similar_ = rank_similar(*similarity);
}

bool LayerPruner::prune(const TokenScores& scores, std::span<std::int32_t> ids,
                        std::span<float> weights) const {
  const auto num_experts = static_cast<std::size_t>(limit_.num_experts());
  COTERIE_CHECK(scores.weights.size() == num_experts, scores.weights.size(), num_experts);
  COTERIE_CHECK(ids.size() == weights.size(), ids.size(), weights.size());
  const Devices devices = limit_.choose({ids, weights});
  const bool all_kept = std::all_of(
      ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || limit_.is_on(id, devices); });
  if (all_kept) {
    return false;
  }
  const double sum_before = sum_of(weights);
  switch (replacement_) {
    case Replacement::kNone:
      for (std::int32_t& id : ids) {
        id = id >= 0 && limit_.is_on(id, devices) ? id : -1;
      }
      break;
    case Replacement::kRouterScore:
      COTERIE_CHECK(scores.selection.size() == num_experts, scores.selection.size(), num_experts);
      replace_by_score(scores, devices, ids);
      break;
    case Replacement::kSimilarity: replace_by_similarity(devices, ids); break;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = ids[i] >= 0 ? scores.weights[static_cast<std::size_t>(ids[i])] : 0.0F;
  }
  if (const double sum = sum_of(weights); weights_ == Weights::kKeepSum && sum > 0) {
    for (float& weight : weights) {
      weight = static_cast<float>(static_cast<double>(weight) * (sum_before / sum));
    }
  }
  return true;
}

void LayerPruner::replace_by_score(const TokenScores& scores, const Devices& devices,
                                   std::span<std::int32_t> ids) const {
  const auto num_picks = static_cast<std::size_t>(
      std::count_if(ids.begin(), ids.end(), [](std::int32_t id) { return id >= 0; }));
  std::vector<std::int32_t> experts;
  for (std::int32_t expert = 0; expert < limit_.num_experts(); ++expert) {
    if (limit_.is_on(expert, devices)) {
      experts.push_back(expert);
    }
  }
  const std::size_t count = std::min(num_picks, experts.size());
  const auto ranks_higher = [&](std::int32_t a, std::int32_t b) {
    const float score_a = scores.selection[static_cast<std::size_t>(a)];
    const float score_b = scores.selection[static_cast<std::size_t>(b)];
    return score_a != score_b ? score_a > score_b : a < b;
  };
  std::partial_sort(experts.begin(), experts.begin() + static_cast<std::ptrdiff_t>(count),
                    experts.end(), ranks_higher);
  std::fill(ids.begin(), ids.end(), -1);
  std::copy_n(experts.begin(), count, ids.begin());
}

void LayerPruner::replace_by_similarity(const Devices& devices, std::span<std::int32_t> ids) const {
  std::vector<std::int32_t> lost(ids.begin(), ids.end());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && limit_.is_on(ids[i], devices)) {
      lost[i] = -1;
    } else {
      ids[i] = -1;
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (lost[i] < 0) {
      continue;
    }
    const auto& ranked = most_similar_[static_cast<std::size_t>(lost[i])];
    const auto found = std::find_if(ranked.begin(), ranked.end(), [&](std::int32_t expert) {
      return limit_.is_on(expert, devices) &&
             std::find(ids.begin(), ids.end(), expert) == ids.end();
    });
    ids[i] = found != ranked.end() ? *found : -1;
  }
}

}  // namespace coterie::pruning
