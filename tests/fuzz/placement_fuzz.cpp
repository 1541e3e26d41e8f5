// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/placement.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace coterie::fuzz {
namespace {

void read(std::string_view bytes) {
  const placement::Placement read_once = placement::read_placement(file_of(bytes));
  placement::format_placement(read_once);
}

std::vector<std::string> seeds() {
  using placement::contiguous_placement_of;
  return {placement::format_placement(contiguous_placement_of({0, 1}, 8, 4)),
          placement::format_placement(contiguous_placement_of({3}, 16, 2)),
          placement::format_placement(contiguous_placement_of({0, 2, 4}, 7, 3))};
}

}  // namespace

const Target kPlacement = {"placement", read, seeds};

}  // namespace coterie::fuzz
