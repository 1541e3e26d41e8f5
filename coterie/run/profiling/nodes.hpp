// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coterie/run/comm/comm.hpp"

namespace coterie::profiling {

/// The nodes that the ranks of a group lie on, and this rank's groups between and inside them: of
/// equal place in all nodes, and of its node. Collective calls on the two may overlap.
struct Nodes {
  int num_nodes = 1;
  int devices_per_node = 1;
  int node = 0;   ///< of this rank
  int place = 0;  ///< of this rank on its node
  std::unique_ptr<comm::Communicator> between;
  std::unique_ptr<comm::Communicator> inside;
  std::unique_ptr<comm::Communicator> gradients;  ///< as `between`, for dense gradients
};

/// Collective. Ranks of one host name are a node; `devices_per_node` > 0 says instead how many
/// neighbouring ranks are one. kBadInput if nodes have different numbers of ranks or a node's ranks
/// are not neighbours.
Nodes find_nodes(comm::Communicator& world, int devices_per_node = 0,
                 const std::string& host_name = "");

}  // namespace coterie::profiling
