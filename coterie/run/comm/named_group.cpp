// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/named_group.hpp"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/c10d_communicator.hpp"
#include "coterie/run/comm/single.hpp"

namespace coterie::comm {

std::unique_ptr<Communicator> communicator_of_group(const std::string& name,
                                                    std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10d::resolve_process_group(name);
  } catch (const std::exception& error) {
    fail(ErrorCode::kBadInput, "no process group is registered as '", name, "'");
  }
  if (group->getSize() == 1) {
    return std::make_unique<SingleCommunicator>();
  }
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group->getBackend(c10::DeviceType::CPU);
  } catch (const std::exception& error) {
    fail(ErrorCode::kUnsupported, "process group '", name,
         "' has no back end for CPU tensors; make it with backend \"gloo\" or "
         "\"cpu:gloo,cuda:nccl\"");
  }
  return std::make_unique<C10dCommunicator>(std::move(backend), timeout);
}

}  // namespace coterie::comm
