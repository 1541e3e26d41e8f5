// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/moe_options.hpp"

#include "coterie/base/error.hpp"

namespace coterie::layer {

void check_moe_options(const MoeOptions& options) {
  const std::string& name = options.name;
  COTERIE_REQUIRE(options.hidden > 0, name, ": hidden size is ", options.hidden);
  COTERIE_REQUIRE(options.intermediate > 0, name, ": intermediate size is ", options.intermediate);
  COTERIE_REQUIRE(options.num_experts > 0, name, ": number of experts is ", options.num_experts);
  COTERIE_REQUIRE(options.top_k > 0 && options.top_k <= options.num_experts, name, ": top_k is ",
                  options.top_k, ", not in [1, ", options.num_experts, "]");
  COTERIE_REQUIRE(options.top_k <= exchange::kMaxTopK, name, ": top_k is ", options.top_k,
                  "; at most ", exchange::kMaxTopK, " is supported");
  exchange::check_exchange_options(options.exchange);
}

}  // namespace coterie::layer
