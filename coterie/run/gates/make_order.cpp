// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"
#include "coterie/run/gates/order_kinds.hpp"

namespace coterie::gates {

void require_picks(const OrderOptions& options, const TokenBatch& batch, const Routing& routing) {
  COTERIE_REQUIRE(routing.ids.defined(), options.name, ": the ", name_of(options.kind),
                  " order needs picks, but this gate mixes tokens into slots; use the slots order");
  COTERIE_REQUIRE(routing.ids.dim() == 2 && routing.ids.size(0) == batch.num_tokens() &&
                      routing.weights.sizes() == routing.ids.sizes(),
                  options.name, ": ids of shape ", routing.ids.sizes(), " and weights of shape ",
                  routing.weights.sizes(), " do not fit ", batch.num_tokens(), " tokens");
}

std::shared_ptr<const Order> make_order(const OrderOptions& options) {
  check_order_options(options);
  switch (options.kind) {
    case OrderKind::kIndex: return make_index_order(options);
    default: break;
  }
  fail(ErrorCode::kUnsupported, options.name, ": no ", name_of(options.kind), " order yet");
}

}  // namespace coterie::gates
