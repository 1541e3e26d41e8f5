// SPDX-License-Identifier: Apache-2.0
#include "bench/placement_quality/synthetic_routing.hpp"

#include <algorithm>
#include <cmath>

namespace coterie::bench {
namespace {

/// A Gamma(alpha) number for alpha < 1 (Ahrens and Dieter 1974, GS).
double gamma_number(Random& random, double alpha) {
  const double border = 1 + alpha / std::exp(1.0);
  for (;;) {
    const double p = border * random.uniform();
    const double other = random.uniform();
    if (p <= 1) {
      const double x = std::pow(p, 1 / alpha);
      if (other <= std::exp(-x)) {
        return x;
      }
    } else {
      const double x = -std::log((border - p) / alpha);
      if (other <= std::pow(x, alpha - 1)) {
        return x;
      }
    }
  }
}

std::size_t draw_from(const std::vector<double>& sums, Random& random) {
  const double at = random.uniform() * sums.back();
  const auto found = std::upper_bound(sums.begin(), sums.end() - 1, at);
  return static_cast<std::size_t>(found - sums.begin());
}

}  // namespace

SyntheticRouting::SyntheticRouting(std::int32_t num_experts, std::int32_t top_k, double alpha,
                                   std::uint64_t seed)
    : num_experts_(num_experts), top_k_(top_k), random_(seed) {
  const int num_topics = std::max(1, num_experts / 4);
  double topic_sum = 0;
  for (int topic = 0; topic < num_topics; ++topic) {
    topic_sum += 1.0 / (topic + 1);
    topic_sums_.push_back(topic_sum);
    std::vector<double> weights;
    double total = 0;
    for (std::int32_t e = 0; e < num_experts; ++e) {
      weights.push_back(gamma_number(random_, alpha));
      total += weights.back();
    }
    double sum = 0;
    for (double& weight : weights) {
      sum += weight / total;
      weight = sum;
    }
    expert_sums_.push_back(std::move(weights));
  }
}

std::uint16_t SyntheticRouting::draw_expert(std::size_t topic) {
  if (random_.uniform() < 0.1) {
    return static_cast<std::uint16_t>(random_.below(static_cast<std::uint64_t>(num_experts_)));
  }
  return static_cast<std::uint16_t>(draw_from(expert_sums_[topic], random_));
}

void SyntheticRouting::draw(std::size_t num_tokens, std::vector<std::uint16_t>& ids) {
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const std::size_t topic = draw_from(topic_sums_, random_);
    const auto first = static_cast<std::ptrdiff_t>(ids.size());
    while (ids.size() < static_cast<std::size_t>(first + top_k_)) {
      const std::uint16_t expert = draw_expert(topic);
      if (std::find(ids.begin() + first, ids.end(), expert) == ids.end()) {
        ids.push_back(expert);
      }
    }
  }
}

}  // namespace coterie::bench
