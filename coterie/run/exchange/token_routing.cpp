// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/token_routing.hpp"

#include <algorithm>
#include <limits>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

void check_token(const TokenRouting& routing, const PlacementIndex& index, std::int64_t token,
                 const std::string& where) {
  const auto ids =
      routing.expert_ids.subspan(routing.pick(token, 0), static_cast<std::size_t>(routing.top_k));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == -1) {
      continue;
    }
    COTERIE_REQUIRE(ids[i] >= 0 && ids[i] < index.num_experts(), where, ": token ", token,
                    ": expert id ", ids[i], " is not in [-1, ", index.num_experts(), ")");
    const auto earlier = ids.first(i);
    COTERIE_REQUIRE(std::find(earlier.begin(), earlier.end(), ids[i]) == earlier.end(), where,
                    ": token ", token, " has expert ", ids[i], " twice");
    const std::int32_t device = routing.device(index, token, static_cast<std::int32_t>(i));
    COTERIE_REQUIRE(device >= 0 && device < index.num_devices(), where, ": token ", token,
                    ": device ", device, " is not in [0, ", index.num_devices(), ")");
    COTERIE_REQUIRE(index.slot_of(device, ids[i]) >= 0, where, ": token ", token, ": device ",
                    device, " does not hold expert ", ids[i]);
  }
}

}  // namespace

void check_token_routing(const TokenRouting& routing, const PlacementIndex& index,
                         const std::string& where) {
  COTERIE_REQUIRE(routing.top_k > 0 && routing.top_k <= kMaxTopK, where, ": top_k is ",
                  routing.top_k, ", not in [1, ", kMaxTopK, "]");
  COTERIE_REQUIRE(
      routing.num_tokens >= 0 &&
          routing.num_tokens <= std::numeric_limits<std::int32_t>::max() / routing.top_k,
      where, ": ", routing.num_tokens, " tokens of ", routing.top_k,
      " experts are more than 2^31 rows");
  const std::size_t num_picks = routing.pick(routing.num_tokens, 0);
  COTERIE_REQUIRE(routing.expert_ids.size() == num_picks, where, ": ", routing.expert_ids.size(),
                  " expert ids, not ", num_picks);
  COTERIE_REQUIRE(routing.weights.empty() || routing.weights.size() == num_picks, where, ": ",
                  routing.weights.size(), " routing weights, not ", num_picks);
  COTERIE_REQUIRE(routing.device_of_pick.empty() || routing.device_of_pick.size() == num_picks,
                  where, ": ", routing.device_of_pick.size(), " devices of picks, not ", num_picks);
  for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
    check_token(routing, index, token, where);
  }
}

}  // namespace coterie::exchange
