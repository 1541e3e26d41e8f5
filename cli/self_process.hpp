// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::cli {

/// Runs this program again as a process of its own, with `arguments` (`--json` is added), and
/// returns the JSON document that it printed. Its progress is dropped. If it fails, throws an error
/// of the same kind with its message.
Json run_self(const std::vector<std::string>& arguments);

}  // namespace coterie::cli
