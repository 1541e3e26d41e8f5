// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/migration/migration.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::migration {
namespace {

using Experts = std::vector<std::int32_t>;

bool holds(const Experts& experts, std::int32_t expert) {
  return std::ranges::binary_search(experts, expert);
}

/// [E] who sends an expert: the lowest device that has it.
std::vector<int> senders_of(const placement::LayerPlacement& from) {
  std::vector<int> senders(static_cast<std::size_t>(from.num_experts), -1);
  for (int device = from.num_devices() - 1; device >= 0; --device) {
    for (const std::int32_t expert : from.experts_of_device[static_cast<std::size_t>(device)]) {
      senders[static_cast<std::size_t>(expert)] = device;
    }
  }
  return senders;
}

/// Experts that `to` puts on device `receiver`, that it did not have, and that `sender` sends.
Experts travelling(const placement::LayerPlacement& from, const placement::LayerPlacement& to,
                   const std::vector<int>& senders, int sender, int receiver) {
  Experts experts;
  const Experts& had = from.experts_of_device[static_cast<std::size_t>(receiver)];
  for (const std::int32_t expert : to.experts_of_device[static_cast<std::size_t>(receiver)]) {
    if (!holds(had, expert) && senders[static_cast<std::size_t>(expert)] == sender) {
      experts.push_back(expert);
    }
  }
  return experts;
}

void check(const placement::LayerPlacement& from, const placement::LayerPlacement& to,
           const HeldExperts& held, const comm::Communicator& group) {
  COTERIE_REQUIRE(from.num_experts == to.num_experts && from.num_devices() == group.size() &&
                      to.num_devices() == group.size(),
                  "migration of ", from.num_experts, " experts on ", from.num_devices(),
                  " devices to ", to.num_experts, " on ", to.num_devices(), ", with ", group.size(),
                  " ranks");
  const auto rank = static_cast<std::size_t>(group.rank());
  COTERIE_REQUIRE(held.before.size() == from.experts_of_device[rank].size() * held.expert_bytes &&
                      held.after.size() == to.experts_of_device[rank].size() * held.expert_bytes,
                  "migration: ", held.before.size(), " and ", held.after.size(), " bytes for ",
                  from.experts_of_device[rank].size(), " and ", to.experts_of_device[rank].size(),
                  " experts of ", held.expert_bytes);
}

std::byte* place_of(const Experts& experts, std::int32_t expert, std::byte* data,
                    std::size_t expert_bytes) {
  const auto place = std::ranges::lower_bound(experts, expert) - experts.begin();
  return data + static_cast<std::size_t>(place) * expert_bytes;
}

}  // namespace

void move_experts(const placement::LayerPlacement& from, const placement::LayerPlacement& to,
                  const HeldExperts& held, comm::Communicator& group) {
  check(from, to, held, group);
  const int rank = group.rank();
  const auto size = static_cast<std::size_t>(group.size());
  const Experts& had = from.experts_of_device[static_cast<std::size_t>(rank)];
  const Experts& gets = to.experts_of_device[static_cast<std::size_t>(rank)];
  const std::vector<int> senders = senders_of(from);
  auto* const before = const_cast<std::byte*>(held.before.data());  // only read
  std::vector<std::byte> send;
  std::vector<std::int64_t> send_bytes(size);
  std::vector<std::int64_t> receive_bytes(size);
  for (int peer = 0; peer < group.size(); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    for (const std::int32_t expert : travelling(from, to, senders, rank, peer)) {
      const std::byte* data = place_of(had, expert, before, held.expert_bytes);
      send.insert(send.end(), data, data + held.expert_bytes);
      send_bytes[at] += static_cast<std::int64_t>(held.expert_bytes);
    }
    receive_bytes[at] = static_cast<std::int64_t>(travelling(from, to, senders, peer, rank).size() *
                                                  held.expert_bytes);
  }
  std::vector<std::byte> received(static_cast<std::size_t>(
      std::accumulate(receive_bytes.begin(), receive_bytes.end(), std::int64_t{0})));
  group.all_to_all(send, send_bytes, received, receive_bytes, comm::Purpose::kControl);
  const std::byte* next = received.data();
  for (int peer = 0; peer < group.size(); ++peer) {
    for (const std::int32_t expert : travelling(from, to, senders, peer, rank)) {
      std::memcpy(place_of(gets, expert, held.after.data(), held.expert_bytes), next,
                  held.expert_bytes);
      next += held.expert_bytes;
    }
  }
  for (const std::int32_t expert : gets) {
    if (holds(had, expert)) {
      std::memcpy(place_of(gets, expert, held.after.data(), held.expert_bytes),
                  place_of(had, expert, before, held.expert_bytes), held.expert_bytes);
    }
  }
}

std::int64_t bytes_to_send(const placement::LayerPlacement& from,
                           const placement::LayerPlacement& to, std::size_t expert_bytes,
                           int rank) {
  const std::vector<int> senders = senders_of(from);
  std::size_t count = 0;
  for (int peer = 0; peer < to.num_devices(); ++peer) {
    count += travelling(from, to, senders, rank, peer).size();
  }
  return static_cast<std::int64_t>(count * expert_bytes);
}

}  // namespace coterie::migration
