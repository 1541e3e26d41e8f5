// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/model.hpp"

#include <algorithm>
#include <numeric>

namespace coterie::training {

double LayerLoad::imbalance() const {
  return device_imbalance(std::ssize(picks));
}

double LayerLoad::device_imbalance(std::int64_t num_devices) const {
  const auto total = std::accumulate(picks.begin(), picks.end(), std::int64_t{0});
  if (total == 0) {
    return 1;
  }
  std::vector<std::int64_t> loads(static_cast<std::size_t>(num_devices));
  for (std::size_t expert = 0; expert < picks.size(); ++expert) {
    loads[expert * loads.size() / picks.size()] += picks[expert];
  }
  const auto largest = static_cast<double>(*std::ranges::max_element(loads));
  return largest * static_cast<double>(num_devices) / static_cast<double>(total);
}

}  // namespace coterie::training
