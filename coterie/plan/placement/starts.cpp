// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/starts.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "coterie/base/error.hpp"
#include "coterie/base/matrix.hpp"
#include "coterie/plan/placement/seeded_greedy.hpp"
#include "coterie/plan/placement/slots.hpp"

namespace coterie::placement {
namespace {

std::vector<std::int32_t> contiguous_start(const SearchProblem& problem) {
  return contiguous_placement(problem.sets->num_experts, problem.num_devices).device_of_expert();
}

std::vector<std::int32_t> random_start(const SearchProblem& problem, Random& random) {
  auto device_of = contiguous_start(problem);
  random.shuffle(std::span(device_of));
  return device_of;
}

/// Every pair of items that some set holds, as a set of two with the number of tokens of both.
routing::ExpertSets pair_sets(const routing::ExpertSets& sets) {
  const auto pairs = pair_counts(sets);
  routing::ExpertSets result;
  result.num_experts = sets.num_experts;
  // Counts are cut so that all pairs together stay below what a search may hold.
  std::int64_t total = 0;
  for (const std::int64_t count : pairs.values()) {
    total += count;
  }
  const std::int64_t divisor = total / (std::int64_t{1} << 30U) + 1;
  for (std::size_t e = 0; e < pairs.rows(); ++e) {
    for (std::size_t f = e + 1; f < pairs.rows(); ++f) {
      if (const std::int64_t count = pairs(e, f) / divisor; count > 0) {
        result.experts.push_back(static_cast<std::uint16_t>(e));
        result.experts.push_back(static_cast<std::uint16_t>(f));
        result.offsets.push_back(static_cast<std::uint32_t>(result.experts.size()));
        result.tokens.push_back(static_cast<std::uint32_t>(count));
      }
    }
  }
  return result;
}

/// One seed a device, as far from each other as greedy choice gets.
std::vector<std::size_t> far_seeds(const Matrix<std::int64_t>& pairs, std::size_t count) {
  std::vector<std::size_t> seeds;
  if (count == 0 || pairs.rows() == 0) {
    return seeds;
  }
  std::vector<std::int64_t> works(pairs.rows());  // with its most related seed
  std::vector<bool> used(pairs.rows());
  for (std::size_t e = 0; e < pairs.rows(); ++e) {
    const auto row = pairs.row(e);
    works[e] = std::accumulate(row.begin(), row.end(), std::int64_t{0});  // first: the most busy
  }
  std::size_t seed = static_cast<std::size_t>(std::ranges::max_element(works) - works.begin());
  std::ranges::fill(works, 0);
  while (true) {
    seeds.push_back(seed);
    used[seed] = true;
    if (seeds.size() == count) {
      return seeds;
    }
    std::size_t next = pairs.rows();
    for (std::size_t e = 0; e < pairs.rows(); ++e) {
      works[e] = std::max(works[e], pairs(e, seed));
      if (!used[e] && (next == pairs.rows() || works[e] < works[next])) {
        next = e;
      }
    }
    seed = next;
  }
}

std::vector<std::int32_t> raw_start(const SearchProblem& problem, std::size_t index,
                                    Random& random) {
  const auto occult = [&] {
    return occult_placement(pair_counts(*problem.sets),
                            even_sizes(problem.sets->num_experts, problem.num_devices))
        .device_of_expert();
  };
  switch (index) {
    case 0: return occult();
    case 1: return farthest_point_start(problem);
    case 2: return clique_swap_start(problem, occult());
    case 3: return even_load_start(problem);
    case 4: return contiguous_start(problem);
    default: return random_start(problem, random);
  }
}

}  // namespace

std::vector<std::int32_t> farthest_point_start(const SearchProblem& problem) {
  const auto pairs = pair_counts(*problem.sets);
  const auto num_devices = static_cast<std::size_t>(problem.num_devices);
  const auto sizes = even_sizes(problem.sets->num_experts, problem.num_devices);
  std::vector<std::int32_t> device_of(pairs.rows(), -1);
  std::vector<std::int32_t> size(num_devices);
  Matrix<std::int64_t> with(num_devices, pairs.rows());  // pairs with what a device holds
  const auto put = [&](std::size_t e, std::size_t d) {
    device_of[e] = static_cast<std::int32_t>(d);
    ++size[d];
    for (std::size_t x = 0; x < pairs.rows(); ++x) {
      with(d, x) += pairs(e, x);
    }
  };
  const auto seeds = far_seeds(pairs, num_devices);
  for (std::size_t d = 0; d < seeds.size(); ++d) {
    put(seeds[d], d);
  }
  for (std::size_t left = pairs.rows() - seeds.size(); left > 0;) {
    for (std::size_t d = 0; d < num_devices && left > 0; ++d) {
      if (size[d] == sizes[d]) {
        continue;
      }
      std::size_t best = pairs.rows();
      for (std::size_t e = 0; e < pairs.rows(); ++e) {
        if (device_of[e] < 0 && (best == pairs.rows() || with(d, e) > with(d, best))) {
          best = e;
        }
      }
      put(best, d);
      --left;
    }
  }
  return device_of;
}

std::vector<std::int32_t> clique_swap_start(const SearchProblem& problem,
                                            const std::vector<std::int32_t>& start) {
  const auto pairs = pair_sets(*problem.sets);
  SearchProblem relaxed;
  relaxed.sets = &pairs;
  relaxed.loads.resize(start.size());
  relaxed.num_devices = problem.num_devices;
  return descend(relaxed, start, 4).device_of;
}

std::vector<std::int32_t> even_load_start(const SearchProblem& problem) {
  const auto sizes = even_sizes(problem.sets->num_experts, problem.num_devices);
  std::vector<std::size_t> order(problem.loads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](std::size_t e) { return problem.loads[e]; });
  std::vector<std::int32_t> device_of(order.size());
  std::vector<std::int32_t> size(sizes.size());
  std::vector<std::int64_t> load(sizes.size());
  for (const std::size_t e : order) {
    std::size_t best = sizes.size();
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (size[d] < sizes[d] && (best == sizes.size() || load[d] < load[best])) {
        best = d;
      }
    }
    device_of[e] = static_cast<std::int32_t>(best);
    ++size[best];
    load[best] += problem.loads[e];
  }
  return device_of;
}

void separate_families(const SearchProblem& problem, std::vector<std::int32_t>& device_of) {
  if (problem.family.empty()) {
    return;
  }
  const auto holds = [&](std::int32_t device, std::int32_t family, std::size_t except) {
    for (std::size_t x = 0; x < device_of.size(); ++x) {
      if (x != except && device_of[x] == device && problem.family[x] == family) {
        return true;
      }
    }
    return false;
  };
  for (std::size_t e = 0; e < device_of.size(); ++e) {
    for (std::size_t f = 0; f < device_of.size() && holds(device_of[e], problem.family[e], e);
         ++f) {
      if (device_of[f] != device_of[e] && !holds(device_of[f], problem.family[e], f) &&
          !holds(device_of[e], problem.family[f], e)) {
        std::swap(device_of[e], device_of[f]);
      }
    }
    if (holds(device_of[e], problem.family[e], e)) {
      fail(ErrorCode::kInfeasible, "copies of expert ", problem.family[e], " do not fit on ",
           problem.num_devices, " devices without two on one");
    }
  }
}

std::vector<std::int32_t> make_start(const SearchProblem& problem, std::size_t index,
                                     Random& random) {
  std::vector<std::int32_t> start = raw_start(problem, index, random);
  separate_families(problem, start);
  return start;
}

}  // namespace coterie::placement
