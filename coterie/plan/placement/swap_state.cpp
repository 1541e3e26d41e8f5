// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/swap_state.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"

namespace coterie::placement {

SwapState::SwapState(const routing::ExpertSets& sets, std::span<const std::int32_t> device_of,
                     std::int32_t num_devices)
    : sets_(sets),
      device_of_(device_of.begin(), device_of.end()),
      items_of_(static_cast<std::size_t>(num_devices)),
      rows_(static_cast<std::size_t>(num_devices)),
      count_(sets.num_sets() * rows_.size()),
      first_(device_of.size() + 1),
      sets_of_(sets.experts.size()),
      alone_(device_of.size()),
      absent_(device_of.size() * rows_.size()),
      kept_(device_of.size() * device_of.size()) {
  COTERIE_CHECK(device_of.size() == static_cast<std::size_t>(sets.num_experts), device_of.size());
  COTERIE_REQUIRE(sets.num_tokens() <= std::uint64_t{1} << 30U, sets.num_tokens(),
                  " tokens in one layer are more than 2^30");
  for (std::size_t e = 0; e < device_of_.size(); ++e) {
    items_of_[static_cast<std::size_t>(device_of_[e])].push_back(static_cast<std::int32_t>(e));
  }
  for (const std::uint16_t e : sets.experts) {
    ++first_[e + std::size_t{1}];
  }
  for (std::size_t e = 0; e < device_of_.size(); ++e) {
    first_[e + 1] += first_[e];
  }
  std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
  for (std::size_t s = 0; s < sets.num_sets(); ++s) {
    const auto set = sets.set(s);
    COTERIE_REQUIRE(set.size() <= 255, "a token chose ", set.size(), " experts, more than 255");
    const auto weight = static_cast<std::int32_t>(sets.tokens[s]);
    std::uint8_t* count = &count_[s * rows_.size()];
    for (const std::uint16_t e : set) {
      sets_of_[next[e]++] = static_cast<std::uint32_t>(s);
      ++count[device_of_[e]];
    }
    for (std::size_t d = 0; d < rows_.size(); ++d) {
      if (count[d] == 0) {
        set_absent(s, d, weight);
      } else {
        rows_[d] += weight;
      }
    }
    for (const std::uint16_t e : set) {
      if (count[device_of_[e]] == 1) {
        set_alone(s, e, weight);
      }
    }
  }
}

void SwapState::set_alone(std::size_t set, std::size_t e, std::int32_t weight) {
  alone_[e] += weight;
  std::int32_t* kept = &kept_[e * num_items()];
  for (const std::uint16_t x : sets_.set(set)) {
    kept[x] += weight;  // kept[e] too: it is never read
  }
}

void SwapState::set_absent(std::size_t set, std::size_t device, std::int32_t weight) {
  for (const std::uint16_t x : sets_.set(set)) {
    absent_[x * num_devices() + device] += weight;
  }
}

std::size_t SwapState::other_on(std::size_t set, std::size_t e, std::size_t device) const {
  for (const std::uint16_t x : sets_.set(set)) {
    if (x != e && static_cast<std::size_t>(device_of_[x]) == device) {
      return x;
    }
  }
  fail(ErrorCode::kInternal, "set ", set, " has no other item on device ", device);
}

void SwapState::take_from(std::size_t set, std::size_t e, std::size_t from) {
  const auto weight = static_cast<std::int32_t>(sets_.tokens[set]);
  std::uint8_t& count = count_[set * num_devices() + from];
  --count;
  if (count == 0) {
    set_absent(set, from, weight);
    rows_[from] -= weight;
  } else if (count == 1) {
    set_alone(set, other_on(set, e, from), weight);
  }
}

void SwapState::give_to(std::size_t set, std::size_t e, std::size_t to) {
  const auto weight = static_cast<std::int32_t>(sets_.tokens[set]);
  std::uint8_t& count = count_[set * num_devices() + to];
  ++count;
  if (count == 1) {
    set_absent(set, to, -weight);
    rows_[to] += weight;
  } else if (count == 2) {
    set_alone(set, other_on(set, e, to), -weight);
  }
}

void SwapState::move(std::size_t e, std::size_t to) {
  const auto from = static_cast<std::size_t>(device_of_[e]);
  if (from == to) {
    return;
  }
  for (std::uint32_t i = first_[e]; i < first_[e + 1]; ++i) {
    const std::size_t set = sets_of_[i];
    const std::uint8_t* count = &count_[set * num_devices()];
    const bool was_alone = count[from] == 1;
    const bool is_alone = count[to] == 0;
    take_from(set, e, from);
    give_to(set, e, to);
    if (was_alone != is_alone) {
      const auto weight = static_cast<std::int32_t>(sets_.tokens[set]);
      set_alone(set, e, is_alone ? weight : -weight);
    }
  }
  const auto item = static_cast<std::int32_t>(e);
  auto& left = items_of_[from];
  left.erase(std::find(left.begin(), left.end(), item));
  items_of_[to].push_back(item);
  device_of_[e] = static_cast<std::int32_t>(to);
}

void SwapState::swap(std::size_t e, std::size_t f) {
  const auto device_e = static_cast<std::size_t>(device_of_[e]);
  const auto device_f = static_cast<std::size_t>(device_of_[f]);
  move(e, device_f);
  move(f, device_e);
}

}  // namespace coterie::placement
