// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/replica_chooser.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "coterie/base/error.hpp"

namespace coterie::placement {
namespace {

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// The choice for one token. Experts are numbered 0..n-1 in ascending id, so that the order in
/// which the router lists them does not matter.
class TokenCover {
 public:
  using Copies = std::span<const std::int32_t>;

  TokenCover(std::span<const Copies> copies, std::uint64_t set_hash,
             std::span<const std::uint32_t> prices)
      : copies_(copies), set_hash_(set_hash), prices_(prices) {}

  /// devices[i] = chosen device of expert i.
  void solve(std::span<std::int32_t> devices) {
    std::uint64_t uncovered = 0;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (copies_[i].size() == 1 && !holds(copies_[i][0])) {
        cover_[cover_size_++] = copies_[i][0];
      }
    }
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      uncovered |= is_covered(i) ? 0 : std::uint64_t{1} << i;
    }
    const auto experts_left = static_cast<std::size_t>(std::popcount(uncovered));
    for (std::size_t extra = 0; extra <= experts_left && best_size_ == 0; ++extra) {
      search(uncovered, extra);
    }
    cover_ = best_;
    cover_size_ = best_size_;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      devices[i] = cheapest(i).second;
    }
  }

 private:
  [[nodiscard]] bool holds(std::int32_t device) const {
    return std::find(cover_.begin(), cover_.begin() + cover_size_, device) !=
           cover_.begin() + cover_size_;
  }
  [[nodiscard]] bool is_covered(std::size_t expert) const {
    return std::ranges::any_of(copies_[expert], [&](std::int32_t d) { return holds(d); });
  }
  [[nodiscard]] std::uint64_t cost_of(std::int32_t device) const {
    const std::uint64_t noise =
        mix(set_hash_ + (static_cast<std::uint64_t>(device) + 1) * 0x9E3779B97F4A7C15ULL);
    return prices_[static_cast<std::size_t>(device)] + noise % ReplicaChooser::kNoise;
  }
  /// Cost and device of the copy that serves expert i if `cover_` is visited.
  [[nodiscard]] std::pair<std::uint64_t, std::int32_t> cheapest(std::size_t i) const {
    std::pair<std::uint64_t, std::int32_t> best{std::numeric_limits<std::uint64_t>::max(), -1};
    for (const std::int32_t device : copies_[i]) {
      if (holds(device)) {
        best = std::min(best, {cost_of(device), device});
      }
    }
    return best;
  }

  /// Tries all ways to cover the experts in the mask with exactly `extra` more devices: the first
  /// uncovered expert must be served by one of its devices.
  void search(std::uint64_t uncovered, std::size_t extra) {
    if (uncovered == 0) {
      weigh();
      return;
    }
    if (extra == 0) {
      return;
    }
    const auto expert = static_cast<std::size_t>(std::countr_zero(uncovered));
    for (const std::int32_t device : copies_[expert]) {
      std::uint64_t left = 0;
      for (std::uint64_t rest = uncovered; rest != 0; rest &= rest - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(rest));
        left |= std::ranges::binary_search(copies_[i], device) ? 0 : std::uint64_t{1} << i;
      }
      cover_[cover_size_++] = device;
      search(left, extra - 1);
      --cover_size_;
    }
  }

  void weigh() {
    std::uint64_t cost = 0;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      cost += copies_[i].size() > 1 ? cheapest(i).first : 0;
    }
    auto cover = cover_;
    std::sort(cover.begin(), cover.begin() + cover_size_);
    const bool better = best_size_ == 0 || cost < best_cost_ ||
                        (cost == best_cost_ &&
                         std::lexicographical_compare(cover.begin(), cover.begin() + cover_size_,
                                                      best_.begin(), best_.begin() + best_size_));
    if (better) {
      best_ = cover;
      best_size_ = cover_size_;
      best_cost_ = cost;
    }
  }

  std::span<const Copies> copies_;
  std::uint64_t set_hash_;
  std::span<const std::uint32_t> prices_;
  std::array<std::int32_t, ReplicaChooser::kMaxTopK> cover_{};
  std::array<std::int32_t, ReplicaChooser::kMaxTopK> best_{};
  std::uint32_t cover_size_ = 0;
  std::uint32_t best_size_ = 0;
  std::uint64_t best_cost_ = 0;
};

}  // namespace

ReplicaChooser::ReplicaChooser(const LayerPlacement& placement)
    : num_experts_(placement.num_experts), prices_(placement.device_prices) {
  check_layer_placement(placement, "ReplicaChooser");
  prices_.resize(static_cast<std::size_t>(placement.num_devices()));
  first_copy_.push_back(0);
  for (const auto& devices : placement.devices_of_expert()) {
    devices_.insert(devices_.end(), devices.begin(), devices.end());
    first_copy_.push_back(static_cast<std::uint32_t>(devices_.size()));
  }
}

void ReplicaChooser::choose(std::span<const std::int32_t> ids,
                            std::span<std::int32_t> devices_out) const {
  COTERIE_CHECK(ids.size() == devices_out.size() && ids.size() <= kMaxTopK, ids.size(), " ids, ",
                devices_out.size(), " devices");
  std::array<std::pair<std::int32_t, std::size_t>, kMaxTopK> sorted;  // id, place in ids
  std::size_t count = 0;
  bool single = true;
  std::uint64_t set_hash = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    devices_out[i] = -1;
    if (ids[i] < 0) {
      continue;
    }
    COTERIE_CHECK(ids[i] < num_experts_, "expert id ", ids[i]);
    const auto id = static_cast<std::size_t>(ids[i]);
    sorted[count++] = {ids[i], i};
    set_hash += mix(id + 1);
    devices_out[i] = devices_[first_copy_[id]];
    single = single && first_copy_[id + 1] - first_copy_[id] == 1;
  }
  if (single) {
    return;
  }
  std::sort(sorted.begin(), sorted.begin() + count);
  std::array<TokenCover::Copies, kMaxTopK> copies;
  std::array<std::int32_t, kMaxTopK> devices;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::size_t>(sorted[i].first);
    COTERIE_CHECK(i == 0 || sorted[i].first != sorted[i - 1].first, "expert ", id, " twice");
    copies[i] = std::span(devices_).subspan(first_copy_[id], first_copy_[id + 1] - first_copy_[id]);
  }
  TokenCover(std::span(copies).first(count), set_hash, prices_)
      .solve(std::span(devices).first(count));
  for (std::size_t i = 0; i < count; ++i) {
    devices_out[sorted[i].second] = devices[i];
  }
}

}  // namespace coterie::placement
