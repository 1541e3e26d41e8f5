// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/read_json.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::cost {

void check_keys(const JsonReader& reader, std::initializer_list<std::string_view> known) {
  if (!reader.value().is_object()) {
    reader.refuse("an object");
  }
  for (const auto& [key, value] : reader.value().items()) {
    COTERIE_REQUIRE(std::ranges::find(known, key) != known.end(), reader.place(),
                    ": unknown key \"", key, "\"");
  }
}

double read_number(const JsonReader& reader, double low, double high) {
  const double value = reader.as_double();
  if (!std::isfinite(value) || value < low || value > high) {
    reader.refuse(join_message("a number in [", low, ", ", high, "]"));
  }
  return value;
}

}  // namespace coterie::cost
