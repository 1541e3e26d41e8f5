// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/replicate.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/base/matrix.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/placement/balance_prices.hpp"
#include "coterie/plan/placement/hierarchy.hpp"
#include "coterie/plan/placement/load_limit.hpp"
#include "coterie/plan/placement/measure.hpp"
#include "coterie/plan/placement/replica_chooser.hpp"
#include "coterie/plan/placement/starts.hpp"

namespace coterie::placement {
namespace {

constexpr int kRounds = 4;        ///< of serving and swapping slots in turn
constexpr int kPriceRounds = 16;  ///< in between; more at the end
constexpr int kLastPriceRounds = 64;

/// Slots in a fixed order, each with its expert and device.
struct Slots {
  std::vector<std::int32_t> expert_of;
  std::vector<std::int32_t> device_of;

  [[nodiscard]] std::size_t size() const { return expert_of.size(); }
  void add(std::int32_t expert, std::int32_t device) {
    expert_of.push_back(expert);
    device_of.push_back(device);
  }
  [[nodiscard]] LayerPlacement placement(std::int32_t num_experts, std::int32_t num_devices) const {
    LayerPlacement result;
    result.num_experts = num_experts;
    result.experts_of_device.resize(static_cast<std::size_t>(num_devices));
    for (std::size_t i = 0; i < size(); ++i) {
      result.experts_of_device[static_cast<std::size_t>(device_of[i])].push_back(expert_of[i]);
    }
    for (auto& experts : result.experts_of_device) {
      std::ranges::sort(experts);
    }
    return result;
  }
};

/// The sets with each expert replaced by the slot that serves it.
routing::ExpertSets served_sets(const routing::ExpertSets& sets, const Slots& slots,
                                const LayerPlacement& placement) {
  const ReplicaChooser chooser(placement);
  Matrix<std::uint16_t> slot_of(static_cast<std::size_t>(placement.num_experts),
                                static_cast<std::size_t>(placement.num_devices()));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slot_of(static_cast<std::size_t>(slots.expert_of[i]),
            static_cast<std::size_t>(slots.device_of[i])) = static_cast<std::uint16_t>(i);
  }
  routing::ExpertSets served = sets;
  served.num_experts = static_cast<std::int32_t>(slots.size());
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> devices;
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    ids.assign(set.begin(), set.end());
    devices.resize(ids.size());
    chooser.choose(ids, devices);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      served.experts[sets.offsets[s] + i] =
          slot_of(static_cast<std::size_t>(ids[i]), static_cast<std::size_t>(devices[i]));
    }
  }
  return served;
}

std::vector<std::int64_t> signed_loads(const routing::ExpertSets& sets) {
  const auto loads = sets.expert_loads();
  return {loads.begin(), loads.end()};
}

/// One search for copies on one layer; `sets` may be a sample, the limit is in its units.
class CopySearch {
 public:
  /// Experts get copies until each copy's share is at most `max_share` of the limit.
  CopySearch(const routing::ExpertSets& sets, const PlacementOptions& options, double load_limit,
             double max_share, const Effort& effort)
      : sets_(sets),
        options_(options),
        load_limit_(load_limit),
        max_share_(max_share),
        effort_(effort) {}

  LayerPlacement run() {
    place_needed_copies();
    while (static_cast<std::int32_t>(slots_.size()) <
           sets_.num_experts + options_.num_redundant_experts) {
      add_copy();
    }
    LayerPlacement best = levelled(kPriceRounds);
    Score best_score = score(best);
    Random random(effort_.seed, effort_.first_stream + (std::uint64_t{1} << 19U));
    for (int round = 0; round < kRounds; ++round) {
      swap_slots(best, random);
      const LayerPlacement next = levelled(kPriceRounds);
      if (const Score next_score = score(next); next_score < best_score) {
        best = next;
        best_score = next_score;
      } else {
        break;
      }
    }
    return best;
  }

 private:
  [[nodiscard]] LayerPlacement plain() const {
    return slots_.placement(sets_.num_experts, options_.num_devices);
  }
  [[nodiscard]] LayerPlacement levelled(int num_rounds) const {
    LayerPlacement placement = plain();
    balance_prices(placement, sets_, num_rounds);
    return placement;
  }
  [[nodiscard]] Score score(const LayerPlacement& placement) const {
    const DeviceCounts counts = count_devices(placement, sets_);
    double excess = 0;
    for (const std::uint64_t picks : counts.picks) {
      excess += std::ceil(std::max(0.0, static_cast<double>(picks) - load_limit_));
    }
    const auto sum = static_cast<std::int64_t>(
        std::accumulate(counts.rows.begin(), counts.rows.end(), std::uint64_t{0}));
    const auto largest = static_cast<std::int64_t>(*std::ranges::max_element(counts.rows));
    Score result{static_cast<std::int64_t>(excess), sum, largest};
    if (options_.objective == Objective::kBottleneck) {
      std::swap(result.primary, result.secondary);
    }
    return result;
  }
  [[nodiscard]] SearchProblem slot_problem(const routing::ExpertSets& served) const {
    SearchProblem problem;
    problem.sets = &served;
    problem.loads = signed_loads(served);
    problem.num_devices = options_.num_devices;
    problem.load_limit = load_limit_;
    problem.objective = options_.objective;
    problem.family = slots_.expert_of;
    return problem;
  }

  /// Copies without which some expert alone is above the limit; its tokens are dealt to its copies
  /// in turn. All slots are then searched together.
  void place_needed_copies() {
    const auto loads = sets_.expert_loads();
    std::vector<std::vector<std::uint16_t>> slots_of(loads.size());
    for (std::size_t e = 0; e < loads.size(); ++e) {
      slots_of[e].push_back(static_cast<std::uint16_t>(e));
      slots_.add(static_cast<std::int32_t>(e), 0);
    }
    std::int32_t left = options_.num_redundant_experts;
    while (left > 0 && std::isfinite(load_limit_)) {
      const auto share = [&](std::size_t e) {
        return static_cast<double>(loads[e]) / static_cast<double>(slots_of[e].size());
      };
      std::size_t hottest = 0;
      for (std::size_t e = 1; e < loads.size(); ++e) {
        hottest = share(e) > share(hottest) ? e : hottest;
      }
      if (share(hottest) <= max_share_ * load_limit_ ||
          slots_of[hottest].size() == static_cast<std::size_t>(options_.num_devices)) {
        break;
      }
      slots_of[hottest].push_back(static_cast<std::uint16_t>(slots_.size()));
      slots_.add(static_cast<std::int32_t>(hottest), 0);
      --left;
    }
    routing::ExpertSets dealt = sets_;
    dealt.num_experts = static_cast<std::int32_t>(slots_.size());
    std::vector<std::size_t> turn(loads.size());
    for (std::uint16_t& e : dealt.experts) {
      const auto& copies = slots_of[e];
      e = copies[turn[e]++ % copies.size()];
    }
    SearchProblem problem = slot_problem(dealt);
    if (slots_.size() == loads.size()) {
      problem.family.clear();
    }
    slots_.device_of = options_.num_nodes > 1
                           ? search_nodes_first(problem, options_.num_nodes, effort_).device_of
                           : search_from_starts(problem, effort_).device_of;
  }

  /// [num_experts, num_devices] rows that a copy of the expert there would save at first sight:
  /// tokens where it is alone on its device and that visit that device anyway.
  [[nodiscard]] Matrix<std::int64_t> copy_gains(const routing::ExpertSets& served) const {
    Matrix<std::int64_t> gains(static_cast<std::size_t>(sets_.num_experts),
                               static_cast<std::size_t>(options_.num_devices));
    std::vector<std::int32_t> count(static_cast<std::size_t>(options_.num_devices));
    for (std::size_t s = 0; s < served.num_sets(); ++s) {
      std::ranges::fill(count, 0);
      for (const std::uint16_t slot : served.set(s)) {
        ++count[static_cast<std::size_t>(slots_.device_of[slot])];
      }
      for (const std::uint16_t slot : served.set(s)) {
        if (count[static_cast<std::size_t>(slots_.device_of[slot])] != 1) {
          continue;
        }
        for (std::size_t d = 0; d < count.size(); ++d) {
          if (count[d] > 0 && static_cast<std::int32_t>(d) != slots_.device_of[slot]) {
            gains(static_cast<std::size_t>(slots_.expert_of[slot]), d) += served.tokens[s];
          }
        }
      }
    }
    return gains;
  }

  /// One more copy where it gains most: saved rows, less the load above the limit that they bring.
  void add_copy() {
    const LayerPlacement placement = plain();
    const auto served = served_sets(sets_, slots_, placement);
    const auto gains = copy_gains(served);
    const auto slot_loads = served.expert_loads();
    std::vector<double> load(placement.experts_of_device.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      load[static_cast<std::size_t>(slots_.device_of[i])] += static_cast<double>(slot_loads[i]);
    }
    std::size_t fewest = placement.experts_of_device[0].size();
    for (const auto& held : placement.experts_of_device) {
      fewest = std::min(fewest, held.size());
    }
    double best_value = 0;
    std::int32_t best_expert = -1;
    std::int32_t best_device = -1;
    for (std::size_t d = 0; d < load.size(); ++d) {
      const auto& held = placement.experts_of_device[d];
      for (std::int32_t e = 0; e < sets_.num_experts && held.size() == fewest; ++e) {
        if (std::ranges::binary_search(held, e)) {
          continue;
        }
        const auto gain = static_cast<double>(gains(static_cast<std::size_t>(e), d));
        const double over =
            std::isfinite(load_limit_)
                ? std::max(0.0, load[d] + gain - load_limit_) - std::max(0.0, load[d] - load_limit_)
                : 0.0;
        const double value = gain - 2 * over;
        if (best_expert < 0 || value > best_value) {
          best_value = value;
          best_expert = e;
          best_device = static_cast<std::int32_t>(d);
        }
      }
    }
    COTERIE_CHECK(best_expert >= 0, "no device has room for another copy");
    slots_.add(best_expert, best_device);
  }

  /// Swaps slots for the serving that `placement` gives.
  void swap_slots(const LayerPlacement& placement, Random& random) {
    const auto served = served_sets(sets_, slots_, placement);
    SearchProblem problem = slot_problem(served);
    problem.devices_a_block =
        options_.num_nodes > 1 ? options_.num_devices / options_.num_nodes : 0;
    slots_.device_of =
        explore(problem, slots_.device_of, 8 * static_cast<std::int64_t>(slots_.size()), random)
            .device_of;
  }

  const routing::ExpertSets& sets_;
  const PlacementOptions& options_;
  double load_limit_;
  double max_share_;
  Effort effort_;
  Slots slots_;
};

}  // namespace

LayerPlacement place_with_copies(const routing::ExpertSets& sets, const PlacementOptions& options,
                                 std::int32_t layer, const Effort& effort) {
  routing::ExpertSets sample;
  const bool is_large = sets.num_sets() > effort.sample_sets;
  if (is_large) {
    sample = sample_tokens(sets, effort.sample_sets);
  }
  const routing::ExpertSets& used = is_large ? sample : sets;
  const double limit = load_limit_of(sets, options);
  double reached = 0;
  // A copy that fills a device leaves no room for the others that must lie there. Where serving
  // brings back load, the limit is taken stricter and hot experts are spread wider.
  constexpr std::pair<double, double> kAttempts[] = {{1.0, 0.9}, {0.98, 0.6}, {0.95, 0.35}};
  for (const auto& [part, max_share] : kAttempts) {
    const double used_limit = std::isfinite(limit) ? part * load_limit_of(used, options) : limit;
    LayerPlacement placement = CopySearch(used, options, used_limit, max_share, effort).run();
    balance_prices(placement, used, kLastPriceRounds);
    const auto picks = count_devices(placement, sets).picks;
    const auto busiest = static_cast<double>(*std::ranges::max_element(picks));
    if (busiest <= limit) {
      return placement;
    }
    const double load = busiest * options.num_devices / static_cast<double>(sets.num_picks());
    reached = reached == 0 ? load : std::min(reached, load);
  }
  fail(ErrorCode::kInfeasible, "layer ", layer, ": no placement on ", options.num_devices,
       " devices with ", options.num_redundant_experts,
       " redundant experts was found that keeps load cap ", *options.load_cap,
       ": the best one found loads a device ", std::setprecision(3), reached,
       " times the mean. Give more --num-redundant-experts, a higher --load-cap, or fewer devices");
}

}  // namespace coterie::placement
