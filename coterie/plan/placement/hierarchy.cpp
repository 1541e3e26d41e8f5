// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/hierarchy.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace coterie::placement {
namespace {

/// The items of one node as a problem of their own.
struct InsideNode {
  std::vector<std::int32_t> items;  ///< numbers in the whole problem
  routing::ExpertSets sets;
  SearchProblem problem;
};

InsideNode inside_node(const SearchProblem& whole, const std::vector<std::int32_t>& node_of,
                       std::int32_t node, std::int32_t num_devices) {
  InsideNode inside;
  std::vector<std::int32_t> local(node_of.size(), -1);
  for (std::size_t e = 0; e < node_of.size(); ++e) {
    if (node_of[e] == node) {
      local[e] = static_cast<std::int32_t>(inside.items.size());
      inside.items.push_back(static_cast<std::int32_t>(e));
      inside.problem.loads.push_back(whole.loads[e]);
      if (!whole.family.empty()) {
        inside.problem.family.push_back(whole.family[e]);
      }
    }
  }
  inside.sets.num_experts = static_cast<std::int32_t>(inside.items.size());
  for (std::size_t s = 0; s < whole.sets->num_sets(); ++s) {
    for (const std::uint16_t e : whole.sets->set(s)) {
      if (local[e] >= 0) {
        inside.sets.experts.push_back(static_cast<std::uint16_t>(local[e]));
      }
    }
    if (inside.sets.experts.size() > inside.sets.offsets.back()) {
      inside.sets.offsets.push_back(static_cast<std::uint32_t>(inside.sets.experts.size()));
      inside.sets.tokens.push_back(whole.sets->tokens[s]);
    }
  }
  inside.problem.num_devices = num_devices;
  inside.problem.load_limit = whole.load_limit;
  inside.problem.load_scale = whole.load_scale;
  inside.problem.objective = whole.objective;
  return inside;
}

Refined search_once(const SearchProblem& problem, std::int32_t num_nodes, double node_limit,
                    const Effort& effort) {
  const std::int32_t devices_a_node = problem.num_devices / num_nodes;
  SearchProblem among_nodes = problem;
  among_nodes.num_devices = num_nodes;
  among_nodes.load_limit = node_limit;
  among_nodes.family.clear();
  const auto node_of = search_from_starts(among_nodes, effort).device_of;
  Refined found;
  found.device_of.resize(node_of.size());
  for (std::int32_t node = 0; node < num_nodes; ++node) {
    InsideNode inside = inside_node(problem, node_of, node, devices_a_node);
    inside.problem.sets = &inside.sets;
    Effort within = effort;
    within.first_stream += (static_cast<std::uint64_t>(node) + 1) << 12U;
    const Refined part = search_from_starts(inside.problem, within);
    for (std::size_t i = 0; i < inside.items.size(); ++i) {
      found.device_of[static_cast<std::size_t>(inside.items[i])] =
          node * devices_a_node + part.device_of[i];
    }
  }
  found.score = score_of(problem, found.device_of);
  return found;
}

}  // namespace

Refined search_nodes_first(const SearchProblem& problem, std::int32_t num_nodes,
                           const Effort& effort) {
  const double total = static_cast<double>(
      std::accumulate(problem.loads.begin(), problem.loads.end(), std::int64_t{0}));
  const double mean = total / num_nodes;
  const double highest = problem.load_limit * problem.num_devices / num_nodes;
  Refined best;
  for (const double part : {0.5, 0.2, 0.0}) {
    const double limit = std::isfinite(highest) ? mean + part * (highest - mean) : highest;
    Refined found = search_once(problem, num_nodes, limit, effort);
    if (best.device_of.empty() || found.score < best.score) {
      best = std::move(found);
    }
    if (best.score.excess == 0) {
      break;
    }
  }
  return best;
}

}  // namespace coterie::placement
