// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/load_limit.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string>

#include "coterie/base/error.hpp"

namespace coterie::placement {
namespace {

std::string two_digits(double value) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << value;
  return out.str();
}

double mean_load(const routing::ExpertSets& sets, const PlacementOptions& options) {
  return static_cast<double>(sets.num_picks()) / options.num_devices;
}

std::string two_digits_up(double value) {
  return two_digits(std::ceil(value * 100) / 100);
}

/// The least load that the device of the hottest expert can have: that expert with the least loaded
/// others, as many as a device must hold. Extra slots may hold copies that serve no token.
double hottest_device_load(const routing::ExpertSets& sets, const PlacementOptions& options) {
  auto loads = sets.expert_loads();
  std::ranges::sort(loads);
  auto load = static_cast<double>(loads.back());
  const std::int32_t others =
      options.num_redundant_experts > 0 ? 0 : sets.num_experts / options.num_devices - 1;
  for (std::int32_t i = 0; i < others; ++i) {
    load += static_cast<double>(loads[static_cast<std::size_t>(i)]);
  }
  return load;
}

}  // namespace

double load_limit_of(const routing::ExpertSets& sets, const PlacementOptions& options) {
  if (!options.load_cap) {
    return std::numeric_limits<double>::infinity();
  }
  return *options.load_cap * mean_load(sets, options);
}

void check_hottest_expert(const routing::ExpertSets& sets, const PlacementOptions& options,
                          std::int32_t layer) {
  const double limit = load_limit_of(sets, options);
  if (!std::isfinite(limit) || sets.num_tokens() == 0) {
    return;
  }
  const auto loads = sets.expert_loads();
  const auto hottest = std::ranges::max_element(loads) - loads.begin();
  const double mean = mean_load(sets, options);
  const double bound = hottest_device_load(sets, options) / mean;
  std::int64_t needed = bound > *options.load_cap ? 1 : 0;
  std::int64_t copies = 0;  // extra ones, if copies share an expert's load evenly
  for (const std::uint64_t load : loads) {
    copies += std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::ceil(static_cast<double>(load) / limit - 1e-9)) - 1);
  }
  needed = std::max(needed, copies);
  if (needed <= options.num_redundant_experts) {
    return;
  }
  const std::int32_t others = sets.num_experts / options.num_devices - 1;
  fail(ErrorCode::kInfeasible, "layer ", layer, ": load cap ", *options.load_cap,
       " cannot be kept on ", options.num_devices, " devices: expert ", hottest,
       " makes its device ", two_digits(bound), " times as loaded as the mean device (",
       two_digits(static_cast<double>(loads[static_cast<std::size_t>(hottest)]) / mean), " alone; ",
       others, " more experts must share the device). Give --num-redundant-experts ", needed,
       " or more to share it among copies, a load cap of at least ", two_digits_up(bound),
       ", or fewer devices");
}

void check_load_kept(const SearchProblem& problem, const Refined& found,
                     const PlacementOptions& options, std::int32_t layer) {
  if (found.score.excess == 0) {
    return;
  }
  std::vector<std::int64_t> load(static_cast<std::size_t>(problem.num_devices));
  std::int64_t total = 0;
  for (std::size_t e = 0; e < found.device_of.size(); ++e) {
    load[static_cast<std::size_t>(found.device_of[e])] += problem.loads[e];
    total += problem.loads[e];
  }
  const auto busiest = std::ranges::max_element(load) - load.begin();
  const auto hottest = std::ranges::max_element(problem.loads) - problem.loads.begin();
  const double mean = static_cast<double>(total) / problem.num_devices;
  fail(ErrorCode::kInfeasible, "layer ", layer, ": no placement on ", options.num_devices,
       " devices was found that keeps load cap ", options.load_cap.value_or(0),
       ": the best one found loads device ", busiest, " ",
       two_digits(static_cast<double>(load[static_cast<std::size_t>(busiest)]) / mean),
       " times the mean (hottest expert ", hottest, ": ",
       two_digits(static_cast<double>(problem.loads[static_cast<std::size_t>(hottest)]) / mean),
       " alone). Give --num-redundant-experts, a higher --load-cap, or fewer devices");
}

}  // namespace coterie::placement
