// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace coterie::schedule {

struct EvolutionOptions {
  std::int32_t population_per_variable = 15;
  std::int32_t max_generations = 200;
  double tolerance = 0.01;  ///< stops when the population's spread is this share of its mean
  double crossover = 0.7;
  std::uint64_t seed = 0;
};

/// Minimises a function of numbers in [0, 1] by differential evolution (Storn and Price 1997),
/// best/1/bin with the mutation factor drawn anew from [0.5, 1) each generation, as FSMoE uses it.
/// `start` joins the first population. Deterministic for a seed. Returns the best point found,
/// never worse than `start`.
std::vector<double> minimise_by_evolution(
    const std::function<double(std::span<const double>)>& cost, std::vector<double> start,
    const EvolutionOptions& options = {});

}  // namespace coterie::schedule
