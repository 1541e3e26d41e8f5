// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace coterie {

/// Names the JSON value type without its long header: for headers that only declare `to_json`.
using Json = nlohmann::ordered_json;

}  // namespace coterie
