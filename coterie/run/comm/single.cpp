// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/comm/single.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/run/comm/collective.hpp"

namespace coterie::comm {

void SingleCommunicator::all_to_all(std::span<const std::byte> send,
                                    std::span<const std::int64_t> send_bytes,
                                    std::span<std::byte> receive,
                                    std::span<const std::int64_t> receive_bytes,
                                    Purpose /*purpose*/) {
  check_all_to_all(send, send_bytes, receive, receive_bytes, 1);
  COTERIE_CHECK(send_bytes[0] == receive_bytes[0], "all_to_all: rank 0 sends ", send_bytes[0],
                " bytes to rank 0, which expects ", receive_bytes[0]);
  std::ranges::copy(send, receive.begin());
  ++traffic_.num_collectives;
}

void SingleCommunicator::all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                                    Purpose /*purpose*/) {
  check_all_gather(send, receive, 1);
  std::ranges::copy(send, receive.begin());
  ++traffic_.num_collectives;
}

void SingleCommunicator::broadcast(std::span<std::byte> /*data*/, int root, Purpose /*purpose*/) {
  check_root(root, 1);
  ++traffic_.num_collectives;
}

void SingleCommunicator::abort(const std::string& message) noexcept {
  if (on_abort_) {
    on_abort_(message);
  }
}

std::unique_ptr<Communicator> SingleCommunicator::split(int color) {
  check_color(color);
  ++traffic_.num_collectives;
  return std::make_unique<SingleCommunicator>(on_abort_);
}

}  // namespace coterie::comm
