// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace coterie {

/// A number that names one thing of one kind. Kinds do not mix: an expert is no device.
/// `value` counts from 0.
template <typename Kind>
struct Id {
  std::int32_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr auto operator<=>(const Id&) const = default;
  /// As an index into a container.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
};

template <typename Kind>
std::ostream& operator<<(std::ostream& out, Id<Kind> id) {
  return out << id.value;
}

/// An expert of one MoE layer, by its number in the checkpoint (its logical id).
using ExpertId = Id<struct ExpertKind>;
/// A device that hosts experts; in a run one rank drives one device.
using DeviceId = Id<struct DeviceKind>;
/// A group of devices with fast links among them.
using NodeId = Id<struct NodeKind>;
/// A place in a placement's list of expert slots (SGLang's "physical" expert).
using SlotId = Id<struct SlotKind>;

}  // namespace coterie

template <typename Kind>
struct std::hash<coterie::Id<Kind>> {
  std::size_t operator()(coterie::Id<Kind> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};
