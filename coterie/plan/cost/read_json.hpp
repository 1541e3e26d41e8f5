// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string_view>

#include "coterie/base/json.hpp"

/// What the room's strict readers share. Not part of the door.
namespace coterie::cost {

/// kBadInput for a member that is none of `known`: a misspelt key must not be passed over.
void check_keys(const JsonReader& reader, std::initializer_list<std::string_view> known);

/// A finite number in [low, high]; kBadInput names place and bounds.
double read_number(const JsonReader& reader, double low, double high);

}  // namespace coterie::cost
