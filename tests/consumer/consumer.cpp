// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "coterie/plan/placement/placement.hpp"

int main() {
  const auto placement = coterie::placement::contiguous_placement(10, 4);
  for (const auto& experts : placement.experts_of_device) {
    std::cout << experts.size() << ' ';
  }
  std::cout << '\n';
  return placement.num_slots() == 10 ? 0 : 1;
}
