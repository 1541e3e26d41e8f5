// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/multi_start.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/parallel.hpp"
#include "coterie/plan/placement/starts.hpp"

namespace coterie::placement {
namespace {

constexpr std::size_t kElite = 3;          ///< points that are explored further and polished
constexpr int kPolishPasses = 6;           ///< at most, on all sets
constexpr std::int64_t kStepsItem = 24;    ///< swaps explored a start and item
constexpr std::size_t kFullSteps = 10000;  ///< sets up to which that holds; above, steps cost more
constexpr std::size_t kManySets = 100000;  ///< above, only the best point is polished, and less

/// Best first; equal scores: the lower index. Points met twice stand once.
void keep_best(std::vector<Refined>& points, std::size_t count) {
  std::ranges::stable_sort(points, {}, &Refined::score);
  const auto same = [](const Refined& a, const Refined& b) { return a.score == b.score; };
  points.erase(std::unique(points.begin(), points.end(), same), points.end());
  points.resize(std::min(points.size(), count));
}

std::vector<Refined> explore_all(const SearchProblem& problem, const Effort& effort) {
  const auto num_sets = static_cast<std::int64_t>(std::max(kFullSteps, problem.sets->num_sets()));
  const std::int64_t steps =
      kStepsItem * problem.sets->num_experts * static_cast<std::int64_t>(kFullSteps) / num_sets;
  std::vector<Refined> points(static_cast<std::size_t>(effort.num_starts));
  for_each_index(points.size(), effort.num_threads, [&](std::size_t i) {
    Random random(effort.seed, effort.first_stream + i);
    points[i] = explore(problem, make_start(problem, i, random), steps, random);
  });
  keep_best(points, kElite);
  std::vector<Refined> further(points.size());
  for_each_index(points.size(), effort.num_threads, [&](std::size_t i) {
    Random random(effort.seed,
                  effort.first_stream + static_cast<std::uint64_t>(effort.num_starts) + i);
    further[i] = explore(problem, points[i].device_of, 3 * steps, random);
  });
  points.insert(points.end(), further.begin(), further.end());
  keep_best(points, kElite);
  return points;
}

}  // namespace

routing::ExpertSets sample_tokens(const routing::ExpertSets& sets, std::uint64_t num_tokens) {
  COTERIE_CHECK(num_tokens > 0, "empty sample");
  routing::ExpertSets sample;
  sample.num_experts = sets.num_experts;
  const std::uint64_t stride = std::max<std::uint64_t>(1, sets.num_tokens() / num_tokens);
  std::uint64_t seen = stride / 2;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const std::uint64_t before = seen / stride;
    seen += sets.tokens[s];
    const std::uint64_t taken = seen / stride - before;
    if (taken > 0) {
      const auto set = sets.set(s);
      sample.experts.insert(sample.experts.end(), set.begin(), set.end());
      sample.offsets.push_back(static_cast<std::uint32_t>(sample.experts.size()));
      sample.tokens.push_back(static_cast<std::uint32_t>(taken));
    }
  }
  return sample;
}

Refined search_from_starts(const SearchProblem& problem, const Effort& effort) {
  if (problem.sets->num_sets() <= effort.sample_sets) {
    return explore_all(problem, effort).front();
  }
  const auto sets = sample_tokens(*problem.sets, effort.sample_sets);
  SearchProblem sampled = problem;
  sampled.sets = &sets;
  sampled.load_scale = problem.load_scale * static_cast<double>(sets.num_tokens()) /
                       static_cast<double>(problem.sets->num_tokens());
  std::vector<Refined> points = explore_all(sampled, effort);
  const bool many = problem.sets->num_sets() > kManySets;
  points.resize(many ? 1 : points.size());
  for_each_index(points.size(), effort.num_threads, [&](std::size_t i) {
    points[i] = descend(problem, points[i].device_of, many ? 2 : kPolishPasses);
  });
  keep_best(points, 1);
  return points.front();
}

}  // namespace coterie::placement
