// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/differential_evolution.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/base/random.hpp"

namespace coterie::schedule {
namespace {

struct Member {
  std::vector<double> at;
  double cost = 0;
};

bool has_settled(const std::vector<Member>& population, double tolerance) {
  double sum = 0;
  double squares = 0;
  for (const Member& member : population) {
    sum += member.cost;
    squares += member.cost * member.cost;
  }
  const double mean = sum / static_cast<double>(population.size());
  const double variance = squares / static_cast<double>(population.size()) - mean * mean;
  return std::sqrt(std::max(0.0, variance)) <= tolerance * std::abs(mean);
}

}  // namespace

std::vector<double> minimise_by_evolution(
    const std::function<double(std::span<const double>)>& cost, std::vector<double> start,
    const EvolutionOptions& options) {
  const std::size_t dimension = start.size();
  if (dimension == 0) {
    return start;
  }
  Random random(options.seed);
  const auto size = std::max<std::size_t>(
      5, static_cast<std::size_t>(options.population_per_variable) * dimension);
  std::vector<Member> population(size);
  population[0] = {start, cost(start)};
  for (std::size_t i = 1; i < size; ++i) {
    population[i].at.resize(dimension);
    std::ranges::generate(population[i].at, [&] { return random.uniform(); });
    population[i].cost = cost(population[i].at);
  }
  const auto best = [&] { return *std::ranges::min_element(population, {}, &Member::cost); };
  std::vector<double> trial(dimension);
  for (std::int32_t generation = 0; generation < options.max_generations; ++generation) {
    const double factor = 0.5 + 0.5 * random.uniform();
    for (Member& member : population) {
      const Member leader = best();
      const Member& a = population[random.below(size)];
      const Member& b = population[random.below(size)];
      const std::size_t kept = random.below(dimension);
      for (std::size_t d = 0; d < dimension; ++d) {
        const bool crosses = d == kept || random.uniform() < options.crossover;
        const double value = leader.at[d] + factor * (a.at[d] - b.at[d]);
        trial[d] = crosses ? (value < 0 || value > 1 ? random.uniform() : value) : member.at[d];
      }
      const double trial_cost = cost(trial);
      if (trial_cost <= member.cost) {
        member = {trial, trial_cost};
      }
    }
    if (has_settled(population, options.tolerance)) {
      break;
    }
  }
  return best().at;
}

}  // namespace coterie::schedule
