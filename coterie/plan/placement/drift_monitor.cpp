// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/drift_monitor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/plan/placement/drift.hpp"

namespace coterie::placement {
namespace {

constexpr double kLargestWeight = 1e100;

double decay_of(double half_life) {
  COTERIE_REQUIRE(half_life > 0, "half life of ", half_life, " tokens is not above 0");
  return std::exp2(-1.0 / half_life);
}

}  // namespace

CoactivationCounts::CoactivationCounts(std::int32_t num_experts, double half_life_tokens)
    : decay_(decay_of(half_life_tokens)),
      pairs_(static_cast<std::size_t>(num_experts), static_cast<std::size_t>(num_experts), 0.0) {}

void CoactivationCounts::add(std::span<const std::int32_t> ids, std::int32_t top_k) {
  const auto width = static_cast<std::size_t>(top_k);
  COTERIE_CHECK(top_k > 0 && ids.size() % width == 0, ids.size(), top_k);
  const auto num_experts = static_cast<std::int32_t>(pairs_.rows());
  for (std::size_t begin = 0; begin < ids.size(); begin += width) {
    const auto row = ids.subspan(begin, width);
    for (const std::int32_t a : row) {
      COTERIE_REQUIRE(a >= -1 && a < num_experts, "token ", begin / width, ": expert ", a, " of ",
                      num_experts);
      for (const std::int32_t b : row) {
        if (a >= 0 && b >= 0) {
          pairs_(static_cast<std::size_t>(a), static_cast<std::size_t>(b)) += weight_;
        }
      }
    }
    num_tokens_ = num_tokens_ * decay_ + 1;
    weight_ /= decay_;
    if (weight_ > kLargestWeight) {
      rescale();
    }
  }
  rescale();
}

/// Brings the weight of the next token back to 1.
void CoactivationCounts::rescale() {
  // The newest token counts 1: it was added with weight_ * decay_.
  const double newest = weight_ * decay_;
  for (double& value : pairs_.values()) {
    value /= newest;
  }
  weight_ = 1 / decay_;
}

void CoactivationCounts::merge(const CoactivationCounts& other) {
  COTERIE_CHECK(other.pairs_.rows() == pairs_.rows(), other.pairs_.rows(), pairs_.rows());
  const auto values = pairs_.values();
  const auto more = other.pairs_.values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] += more[i];
  }
  num_tokens_ += other.num_tokens_;
}

std::vector<double> CoactivationCounts::load() const {
  std::vector<double> load(pairs_.rows());
  for (std::size_t e = 0; e < load.size(); ++e) {
    load[e] = pairs_(e, e);
  }
  return load;
}

routing::ExpertSets CoactivationCounts::pair_sets() const {
  double largest = 0;
  for (std::size_t a = 0; a < pairs_.rows(); ++a) {
    for (std::size_t b = a + 1; b < pairs_.rows(); ++b) {
      largest = std::max(largest, pairs_(a, b));
    }
  }
  routing::ExpertSets sets;
  sets.num_experts = static_cast<std::int32_t>(pairs_.rows());
  for (std::size_t a = 0; a < pairs_.rows(); ++a) {
    for (std::size_t b = a + 1; b < pairs_.rows(); ++b) {
      const double count = largest > 0 ? std::round(pairs_(a, b) / largest * 1e6) : 0;
      if (count > 0) {
        sets.experts.push_back(static_cast<std::uint16_t>(a));
        sets.experts.push_back(static_cast<std::uint16_t>(b));
        sets.offsets.push_back(static_cast<std::uint32_t>(sets.experts.size()));
        sets.tokens.push_back(static_cast<std::uint32_t>(count));
      }
    }
  }
  return sets;
}

std::string_view name_of(DriftVerdict verdict) noexcept {
  switch (verdict) {
    case DriftVerdict::kSteady: return "steady";
    case DriftVerdict::kLoad: return "load";
    case DriftVerdict::kSpread: return "spread";
  }
  return "unknown";
}

DriftMonitor::DriftMonitor(LayerPlacement placement, const MonitorOptions& options)
    : placement_(std::move(placement)),
      options_(options),
      counts_(placement_.num_experts, options.half_life_tokens),
      home_(placement_.device_of_expert()) {}

void DriftMonitor::placed(LayerPlacement placement) {
  COTERIE_REQUIRE(placement.num_experts == placement_.num_experts, "a placement of ",
                  placement.num_experts, " experts takes the place of one of ",
                  placement_.num_experts);
  placement_ = std::move(placement);
  home_ = placement_.device_of_expert();
  decayed_devices_ = decayed_tokens_ = seen_ = reference_ = 0;
  quiet_until_ = options_.cool_down_tokens;
}

DriftVerdict DriftMonitor::add(std::span<const std::int32_t> ids, std::int32_t top_k) {
  counts_.add(ids, top_k);
  const double decay = decay_of(options_.half_life_tokens);
  const auto width = static_cast<std::size_t>(top_k);
  std::vector<std::int32_t> devices;
  for (std::size_t begin = 0; begin < ids.size(); begin += width) {
    devices.clear();
    for (const std::int32_t id : ids.subspan(begin, width)) {
      if (id >= 0) {
        devices.push_back(home_[static_cast<std::size_t>(id)]);
      }
    }
    std::ranges::sort(devices);
    const auto distinct = std::ranges::unique(devices).begin() - devices.begin();
    decayed_devices_ = decayed_devices_ * decay + static_cast<double>(distinct);
    decayed_tokens_ = decayed_tokens_ * decay + 1;
    seen_ += 1;
  }
  if (seen_ < options_.warm_up_tokens) {
    return DriftVerdict::kSteady;
  }
  if (reference_ == 0) {
    reference_ = replicas();
  }
  if (seen_ < quiet_until_) {
    return DriftVerdict::kSteady;
  }
  const bool is_uneven = load_imbalance() > options_.max_load;
  const bool is_spread = replicas() > reference_ * (1 + options_.max_growth);
  if (!is_uneven && !is_spread) {
    return DriftVerdict::kSteady;
  }
  quiet_until_ = seen_ + options_.cool_down_tokens;
  return is_uneven ? DriftVerdict::kLoad : DriftVerdict::kSpread;
}

double DriftMonitor::load_imbalance() const {
  const std::vector<double> load = counts_.load();
  std::vector<double> of_device(placement_.experts_of_device.size());
  for (std::size_t e = 0; e < load.size(); ++e) {
    of_device[static_cast<std::size_t>(home_[e])] += load[e];
  }
  const double sum = std::accumulate(of_device.begin(), of_device.end(), 0.0);
  return sum > 0 ? std::ranges::max(of_device) * static_cast<double>(of_device.size()) / sum : 0;
}

double DriftMonitor::replicas() const {
  return decayed_tokens_ > 0 ? decayed_devices_ / decayed_tokens_ : 0;
}

LayerPlacement limit_moves(const LayerPlacement& from, const LayerPlacement& to,
                           std::int64_t max_moves) {
  COTERIE_REQUIRE(from.has_single_copies() && to.has_single_copies(),
                  "moves are limited between placements with one copy an expert");
  if (count_moved(from, to) <= max_moves) {
    return to;
  }
  std::vector<std::int32_t> at = from.device_of_expert();
  const std::vector<std::int32_t> goal = to.device_of_expert();
  const auto num_experts = static_cast<std::size_t>(from.num_experts);
  std::vector<bool> moved(num_experts);
  std::int64_t left = max_moves;
  // Two experts change places if the first comes home, and both if `both`; none moves twice.
  const auto swap_some = [&](bool both) {
    for (std::size_t a = 0; a < num_experts && left >= 2; ++a) {
      for (std::size_t b = 0; b < num_experts && at[a] != goal[a] && !moved[a]; ++b) {
        if (!moved[b] && at[b] == goal[a] && at[b] != goal[b] && (!both || goal[b] == at[a])) {
          std::swap(at[a], at[b]);
          moved[a] = moved[b] = true;
          left -= 2;
          break;
        }
      }
    }
  };
  swap_some(true);
  swap_some(false);
  LayerPlacement made = from;
  for (auto& experts : made.experts_of_device) {
    experts.clear();
  }
  for (std::size_t e = 0; e < num_experts; ++e) {
    made.experts_of_device[static_cast<std::size_t>(at[e])].push_back(static_cast<std::int32_t>(e));
  }
  return made;
}

}  // namespace coterie::placement
