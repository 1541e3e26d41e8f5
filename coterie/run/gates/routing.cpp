// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/routing.hpp"

#include "coterie/base/error.hpp"

namespace coterie::gates {

Json to_json(const RoutingStatistics& statistics) {
  return {{"num_tokens", statistics.num_tokens},
          {"picks_per_expert", statistics.picks_per_expert},
          {"num_dropped_picks", statistics.num_dropped_picks},
          {"num_dropped_tokens", statistics.num_dropped_tokens},
          {"num_bad_tokens", statistics.num_bad_tokens},
          {"first_bad_token", statistics.first_bad_token}};
}

void require_good_routing(const RoutingStatistics& statistics, const std::string& name) {
  COTERIE_REQUIRE(statistics.num_bad_tokens == 0, name, ": the router's logits of token ",
                  statistics.first_bad_token, " are not numbers (", statistics.num_bad_tokens,
                  " such tokens)");
}

}  // namespace coterie::gates
