// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coterie::cost {

/// What a task occupies on one device. Tasks on different resources may run at the same time, and
/// then slow each other (Contention).
enum class Resource : std::uint8_t {
  kInterNode,  ///< the network between nodes
  kIntraNode,  ///< the links among the devices of a node
  kCompute,    ///< the device's arithmetic
};

inline constexpr std::array kResources = {Resource::kInterNode, Resource::kIntraNode,
                                          Resource::kCompute};
inline constexpr std::size_t kNumResources = kResources.size();

[[nodiscard]] constexpr std::size_t index_of(Resource resource) {
  return static_cast<std::size_t>(resource);
}

/// "inter_node", "intra_node", "compute".
std::string_view name_of(Resource resource);

}  // namespace coterie::cost
