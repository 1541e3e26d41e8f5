// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/parallel/groups.hpp"

#include "coterie/base/error.hpp"

namespace coterie::parallel {
namespace {

void add(comm::Traffic& sum, const comm::Traffic& part) {
  for (std::size_t purpose = 0; purpose < comm::kNumPurposes; ++purpose) {
    sum.bytes_sent[purpose] += part.bytes_sent[purpose];
  }
  sum.num_collectives += part.num_collectives;
}

/// Whether two kinds of group have the same members everywhere: then one communicator serves both.
bool are_same(const Layout& layout, GroupKind a, GroupKind b) {
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    if (layout.members(a, rank) != layout.members(b, rank)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Groups::Groups(comm::Communicator& world, const Layout& layout) : layout_(layout) {
  COTERIE_REQUIRE(world.size() == layout.world_size(), "layout: ", format_options(layout.options()),
                  " needs ", layout.world_size(), " ranks, the run has ", world.size());
  coordinates_ = layout.coordinates(world.rank());
  groups_[static_cast<std::size_t>(GroupKind::kWorld)] = &world;
  for (std::size_t kind = 1; kind < kNumGroupKinds; ++kind) {
    for (std::size_t other = 0; other < kind && groups_[kind] == nullptr; ++other) {
      if (are_same(layout, static_cast<GroupKind>(kind), static_cast<GroupKind>(other))) {
        groups_[kind] = groups_[other];
      }
    }
    if (groups_[kind] == nullptr) {
      owned_.push_back(world.split(layout.group_of(static_cast<GroupKind>(kind), world.rank())));
      groups_[kind] = owned_.back().get();
    }
  }
  // Pairs (0, 1), (2, 3), ... of stages, then (1, 2), (3, 4), ...
  for (int first = 0; layout.options().pipeline > 1 && first < 2; ++first) {
    const int pair = (coordinates_.pipeline + first) / 2;
    owned_.push_back(world.split(pair * layout.stage_size() + world.rank() % layout.stage_size()));
    comm::Communicator* neighbours = owned_.back().get();
    if (neighbours->size() == 2) {
      (neighbours->rank() == 0 ? next_ : previous_) = neighbours;
    }
  }
}

Groups::~Groups() = default;

comm::Traffic Groups::traffic() const {
  comm::Traffic sum = world().traffic();
  for (const auto& communicator : owned_) {
    add(sum, communicator->traffic());
  }
  return sum;
}

void Groups::reset_traffic() {
  world().reset_traffic();
  for (const auto& communicator : owned_) {
    communicator->reset_traffic();
  }
}

}  // namespace coterie::parallel
