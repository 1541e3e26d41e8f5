// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The `count` best of values, ties to the lowest place.
std::vector<std::int32_t> best_of(std::span<const float> values, std::int64_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = values[static_cast<std::size_t>(a)];
                      const float y = values[static_cast<std::size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

bool is_usable(std::span<const float> logits) {
  bool any = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) {
      return false;
    }
    any |= logit != kNever;
  }
  return any;
}

void softmax(std::span<const float> logits, std::vector<float>& scores) {
  const float largest = *std::ranges::max_element(logits);
  float sum = 0;
  scores.resize(logits.size());
  for (std::size_t e = 0; e < logits.size(); ++e) {
    scores[e] = std::exp(logits[e] - largest);
    sum += scores[e];
  }
  for (float& score : scores) {
    score /= sum;
  }
}

}  // namespace

Router::Router(const ModelConfig& config, std::span<const float> bias)
    : num_experts_(config.num_experts),
      options_(config.router),
      renormalise_(config.renormalise),
      bias_(bias.begin(), bias.end()) {
  COTERIE_CHECK(std::ssize(bias_) == (options_.correction_bias ? num_experts_ : 0),
                "a correction bias of ", bias_.size(), " experts");
}

bool Router::score(std::span<const float> logits, Scores& scores) const {
  if (!is_usable(logits)) {
    return false;
  }
  if (options_.score == RouterScore::kSoftmax) {
    softmax(logits, scores.weights);
  } else {
    scores.weights.resize(logits.size());
    std::ranges::transform(logits, scores.weights.begin(),
                           [](float logit) { return 1.0F / (1.0F + std::exp(-logit)); });
  }
  scores.ranks = scores.weights;
  for (std::size_t e = 0; e < bias_.size(); ++e) {
    scores.ranks[e] += bias_[e];
  }
  if (options_.num_groups > 1) {
    close_groups(scores);
  }
  return true;
}

void Router::close_groups(Scores& scores) const {
  const auto size = static_cast<std::size_t>(num_experts_ / options_.num_groups);
  std::vector<float> of_group;
  for (std::size_t begin = 0; begin < scores.ranks.size(); begin += size) {
    std::vector<float> group(scores.ranks.begin() + static_cast<std::ptrdiff_t>(begin),
                             scores.ranks.begin() + static_cast<std::ptrdiff_t>(begin + size));
    std::ranges::sort(group, std::greater<>());
    of_group.push_back(options_.group_score == GroupScore::kTwoBest ? group[0] + group[1]
                                                                    : group[0]);
  }
  const std::vector<std::int32_t> open = best_of(of_group, options_.top_groups);
  for (std::size_t e = 0; e < scores.ranks.size(); ++e) {
    if (std::ranges::find(open, static_cast<std::int32_t>(e / size)) == open.end()) {
      scores.ranks[e] = kNever;
    }
  }
}

void Router::finish(std::span<float> weights) const {
  if (renormalise_) {
    const float sum = std::accumulate(weights.begin(), weights.end(), 0.0F) + 1e-20F;
    for (float& weight : weights) {
      weight /= sum;
    }
  }
  for (float& weight : weights) {
    weight *= static_cast<float>(options_.scale);
  }
}

bool Router::choose(std::span<const float> logits, std::span<std::int32_t> ids,
                    std::span<float> weights) const {
  Scores scores;
  if (!score(logits, scores)) {
    std::ranges::fill(ids, -1);
    std::ranges::fill(weights, 0.0F);
    return false;
  }
  const std::vector<std::int32_t> best = best_of(scores.ranks, std::ssize(ids));
  for (std::size_t i = 0; i < best.size(); ++i) {
    ids[i] = best[i];
    weights[i] = scores.weights[static_cast<std::size_t>(best[i])];
  }
  finish(weights);
  return true;
}

bool Router::prune(const pruning::LayerPruner& pruner, std::span<const float> logits,
                   std::span<std::int32_t> ids, std::span<float> weights) const {
  Scores scores;
  if (!score(logits, scores)) {
    return false;
  }
  std::vector<std::int32_t> new_ids(ids.begin(), ids.end());
  std::vector<float> new_weights(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    new_weights[i] = scores.weights[static_cast<std::size_t>(ids[i])];
  }
  if (!pruner.prune({scores.ranks, scores.weights}, new_ids, new_weights)) {
    return false;
  }
  finish(new_weights);
  std::ranges::copy(new_ids, ids.begin());
  std::ranges::copy(new_weights, weights.begin());
  return true;
}

}  // namespace coterie::models
