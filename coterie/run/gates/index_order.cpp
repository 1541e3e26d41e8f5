// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/capacity.hpp"
#include "coterie/run/gates/order_kinds.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// Rows are the tokens. Nothing is copied; picks beyond capacity lose their id.
class IndexOrder final : public Order {
 public:
  explicit IndexOrder(OrderOptions options) : options_(std::move(options)) {}

  OrderedRows order(const TokenBatch& batch, const Routing& routing) const override {
    require_picks(options_, batch, routing);
    OrderedRows rows;
    rows.rows = batch.x;
    rows.ids = routing.ids;
    rows.weights = routing.weights;
    rows.statistics = routing.statistics;
    rows.counts = routing.counts;
    if (options_.capacity.factor > 0.0) {
      add_counts(rows.statistics, rows.counts);
      rows.counts.reset();
      const PickPlaces places = place_picks(batch, routing, options_.capacity, options_.name);
      const at::Tensor kept = places.place.ge(0).to(routing.ids.device());
      rows.ids = at::where(kept, routing.ids, -1).to(at::kInt);
      rows.weights = at::where(kept, routing.weights, 0.0);
      count_drops(rows.ids, places.num_dropped, rows.statistics);
    }
    return rows;
  }

  at::Tensor restore(const at::Tensor& outputs, const TokenBatch& batch,
                     const OrderedRows& /*rows*/) const override {
    COTERIE_REQUIRE(outputs.dim() == 2 && outputs.size(0) == batch.num_tokens(), options_.name,
                    ": outputs of shape ", outputs.sizes(), " for ", batch.num_tokens(), " tokens");
    return outputs;
  }

  const OrderOptions& options() const override { return options_; }

 private:
  OrderOptions options_;
};

}  // namespace

std::shared_ptr<const Order> make_index_order(const OrderOptions& options) {
  return std::make_shared<IndexOrder>(options);
}

}  // namespace coterie::gates
