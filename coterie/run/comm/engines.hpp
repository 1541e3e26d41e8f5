// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coterie/run/comm/group.hpp"

namespace coterie::comm {

/// An engine makes this process's rank of a group. A new one is one line in `engines()`.
struct Engine {
  std::string name;
  std::unique_ptr<Communicator> (*make)(const GroupOptions& options);
};

/// The engines in which a rank is a process.
const std::vector<Engine>& engines();

std::unique_ptr<Communicator> make_single(const GroupOptions& options);
std::unique_ptr<Communicator> make_mpi(const GroupOptions& options);

}  // namespace coterie::comm
