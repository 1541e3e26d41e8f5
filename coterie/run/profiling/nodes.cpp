// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/profiling/nodes.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::profiling {
namespace {

using HostName = std::array<char, 256>;

HostName own_host_name(const std::string& given) {
  HostName name{};
  if (given.empty()) {
    gethostname(name.data(), name.size() - 1);
  } else {
    std::copy_n(given.begin(), std::min(given.size(), name.size() - 1), name.begin());
  }
  return name;
}

/// Neighbouring ranks with one name, as many on each.
int count_on_a_host(const std::vector<HostName>& names) {
  const auto first_end = std::ranges::find_if(names, [&](const auto& n) { return n != names[0]; });
  const auto count = first_end - names.begin();
  for (std::ptrdiff_t at = 0; at < std::ssize(names); ++at) {
    const auto node_start = static_cast<std::size_t>(at / count * count);
    COTERIE_REQUIRE(names[static_cast<std::size_t>(at)] == names[node_start] &&
                        (node_start == 0 || names[node_start] != names[node_start - 1]) &&
                        std::ssize(names) % count == 0,
                    "rank ", at, " on ", names[static_cast<std::size_t>(at)].data(),
                    ": nodes must have equally many ranks, next to each other; say how many with "
                    "--devices-per-node");
  }
  return static_cast<int>(count);
}

}  // namespace

Nodes find_nodes(comm::Communicator& world, int devices_per_node, const std::string& host_name) {
  Nodes nodes;
  if (devices_per_node > 0) {
    COTERIE_REQUIRE(world.size() % devices_per_node == 0, world.size(),
                    " ranks do not divide into nodes of ", devices_per_node);
    nodes.devices_per_node = devices_per_node;
  } else {
    const HostName mine = own_host_name(host_name);
    std::vector<HostName> names(static_cast<std::size_t>(world.size()));
    world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(names)),
                     comm::Purpose::kControl);
    nodes.devices_per_node = count_on_a_host(names);
  }
  nodes.num_nodes = world.size() / nodes.devices_per_node;
  nodes.node = world.rank() / nodes.devices_per_node;
  nodes.place = world.rank() % nodes.devices_per_node;
  nodes.between = world.split(nodes.place);
  nodes.inside = world.split(nodes.node);
  nodes.gradients = world.split(nodes.place);
  return nodes;
}

}  // namespace coterie::profiling
