// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/plan/routing/routing.hpp"

namespace coterie::placement {

/// A placement of items (experts, or slots of experts with copies) on devices together with what is
/// needed to know the exact effect of any swap or move on the number of rows in O(1)
/// (docs/design/006-exact-swap-search.md). With w a set's tokens and cnt[t][d] the items of set t
/// on device d:
///     b(e)   = sum of w over sets of e with cnt[dev e] = 1     what leaving its device saves
///     p(e,d) = sum of w over sets of e with cnt[d] = 0         what going to d costs
///     S(e,f) = sum of w over sets of e and f with cnt[dev e] = 1
/// Sums are exact 32-bit counts; at most 2^30 tokens. Not thread-safe. Memory: one byte a set and
/// device, 4 bytes a (set, item) pair, beside the sets themselves, which must outlive it.
class SwapState {
 public:
  /// `device_of`: [num_experts of the sets] first devices, each in [0, num_devices). kBadInput for
  /// more than 2^30 tokens or a set of more than 255 items.
  SwapState(const routing::ExpertSets& sets, std::span<const std::int32_t> device_of,
            std::int32_t num_devices);

  [[nodiscard]] std::size_t num_items() const { return device_of_.size(); }
  [[nodiscard]] std::size_t num_devices() const { return rows_.size(); }
  [[nodiscard]] const std::vector<std::int32_t>& device_of() const { return device_of_; }
  /// [num_devices] token copies that each device receives.
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }
  /// Items of each device, in no particular but reproducible order.
  [[nodiscard]] const std::vector<std::int32_t>& items_of(std::size_t device) const {
    return items_of_[device];
  }

  /// Rows that e's device saves, and that device `to` costs, if e moves there.
  [[nodiscard]] std::int32_t rows_saved(std::size_t e) const { return alone_[e]; }
  [[nodiscard]] std::int32_t rows_added(std::size_t e, std::size_t to) const {
    return absent_[e * num_devices() + to];
  }
  /// Rows of e's device that a swap with f keeps alive: sets of both where e is alone.
  [[nodiscard]] std::int32_t rows_kept(std::size_t e, std::size_t f) const {
    return kept_[e * num_items() + f];
  }

  /// Moves item e to a device. O(sets of e x top_k) at worst.
  void move(std::size_t e, std::size_t to);
  void swap(std::size_t e, std::size_t f);

 private:
  void take_from(std::size_t set, std::size_t e, std::size_t from);
  void give_to(std::size_t set, std::size_t e, std::size_t to);
  void set_alone(std::size_t set, std::size_t e, std::int32_t weight);
  void set_absent(std::size_t set, std::size_t device, std::int32_t weight);
  [[nodiscard]] std::size_t other_on(std::size_t set, std::size_t e, std::size_t device) const;

  const routing::ExpertSets& sets_;
  std::vector<std::int32_t> device_of_;
  std::vector<std::vector<std::int32_t>> items_of_;
  std::vector<std::int64_t> rows_;
  std::vector<std::uint8_t> count_;     ///< [num_sets, num_devices]
  std::vector<std::uint32_t> first_;    ///< [num_items + 1] into sets_of_
  std::vector<std::uint32_t> sets_of_;  ///< sets of each item
  std::vector<std::int32_t> alone_;     ///< b [num_items]
  std::vector<std::int32_t> absent_;    ///< p [num_items, num_devices]
  std::vector<std::int32_t> kept_;      ///< S [num_items, num_items]
};

}  // namespace coterie::placement
