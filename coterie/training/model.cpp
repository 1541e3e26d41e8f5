// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/model.hpp"

#include <algorithm>
#include <numeric>

namespace coterie::training {

double LayerLoad::imbalance() const {
  const auto total = std::accumulate(picks.begin(), picks.end(), std::int64_t{0});
  if (total == 0) {
    return 1;
  }
  const auto largest = static_cast<double>(*std::ranges::max_element(picks));
  return largest * static_cast<double>(picks.size()) / static_cast<double>(total);
}

}  // namespace coterie::training
