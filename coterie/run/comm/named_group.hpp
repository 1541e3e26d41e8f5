// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "coterie/run/comm/communicator.hpp"

namespace coterie::comm {

/// A communicator over a process group that somebody else made and registered with c10d under
/// `name` (torch.distributed does so for every group: `group.group_name`). Its back end for CPU
/// tensors carries the bytes; it must outlive the communicator. The group may be used for other
/// collectives between calls, in the same order on all ranks. It cannot be split or closed here.
/// kBadInput: no group of that name; kUnsupported: it has no back end for CPU tensors. Only in
/// builds with libtorch.
std::unique_ptr<Communicator> communicator_of_group(const std::string& name,
                                                    std::chrono::milliseconds timeout);

}  // namespace coterie::comm
