// SPDX-License-Identifier: Apache-2.0
#include "cli/load_cap_flag.hpp"

#include <cmath>
#include <stdexcept>

#include "coterie/base/error.hpp"

namespace coterie::cli {

std::optional<double> parse_load_cap(const std::string& text) {
  if (text == "none") {
    return std::nullopt;
  }
  std::size_t used = 0;
  double cap = 0;
  try {
    cap = std::stod(text, &used);
  } catch (const std::logic_error&) {
    used = 0;
  }
  COTERIE_REQUIRE(used > 0 && used == text.size() && std::isfinite(cap) && cap >= 1, "--load-cap ",
                  text, ": expected none or a number of at least 1");
  return cap;
}

}  // namespace coterie::cli
