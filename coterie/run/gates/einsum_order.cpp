// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "coterie/run/gates/capacity.hpp"
#include "coterie/run/gates/order_kinds.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// GShard (Lepikhin et al. 2020), algorithm 2: a dispatch mask [n, E, C] of zeros and ones makes
/// each expert's C slots out of n tokens, rows = einsum("tec,th->ech", mask, x); y = einsum("tec,
/// ech->th", weight * mask, outputs). One mask a sequence (or one for all, CapacityScope::kRank).
/// Slots that nobody fills have the id -1, so they cost the experts nothing.
class EinsumOrder final : public Order {
 public:
  explicit EinsumOrder(OrderOptions options) : options_(std::move(options)) {}

  OrderedRows order(const TokenBatch& batch, const Routing& routing) const override {
    require_picks(options_, batch, routing);
    const PickPlaces places = place_picks(batch, routing, options_.capacity, options_.name);
    const at::Tensor kept = places.place.ge(0).to(routing.ids.device());
    OrderedRows result;
    result.statistics = routing.statistics;
    add_counts(result.statistics, routing.counts);
    count_drops(at::where(kept, routing.ids, -1).to(at::kInt), places.num_dropped,
                result.statistics);
    std::vector<at::Tensor> rows = {batch.x.narrow(0, 0, 0)};
    std::vector<at::Tensor> ids = {at::empty({0}, routing.ids.options())};
    for (const CapacityBlock& block : places.blocks) {
      add_block(batch, routing, places.place, block, {&rows, &ids, &result.blocks});
    }
    result.rows = at::cat(rows);
    result.ids = at::cat(ids).unsqueeze(1);
    result.weights = result.ids.ge(0).to(routing.weights.scalar_type());
    return result;
  }

  at::Tensor restore(const at::Tensor& outputs, const TokenBatch& batch,
                     const OrderedRows& rows) const override {
    return restore_blocks(outputs, batch, rows, options_.name);
  }

  const OrderOptions& options() const override { return options_; }

 private:
  struct Parts {
    std::vector<at::Tensor>* rows;
    std::vector<at::Tensor>* ids;
    std::vector<SlotBlock>* blocks;
  };

  static void add_block(const TokenBatch& batch, const Routing& routing, const at::Tensor& place,
                        const CapacityBlock& block, const Parts& parts) {
    const at::Device device = batch.x.device();
    const auto E = static_cast<std::int64_t>(routing.statistics.picks_per_expert.size());
    const auto n = static_cast<std::int64_t>(block.tokens.size());
    const std::int64_t C = block.capacity;
    const at::Tensor tokens = at::tensor(block.tokens, at::kLong).to(device);
    const at::Tensor at_place = place.to(device).index_select(0, tokens);  // [n, k]
    const at::Tensor is_kept = at_place.ge(0);
    const at::Tensor picks = is_kept.nonzero();  // [picks, 2]: token, column
    const at::Tensor expert =
        routing.ids.index_select(0, tokens).to(at::kLong).masked_select(is_kept);
    const at::Tensor slot = at_place.masked_select(is_kept);
    const at::Tensor token = picks.select(1, 0);

    at::Tensor mask = at::zeros({n, E, C}, batch.x.options());
    mask.index_put_({token, expert, slot}, at::ones({}, mask.options()));
    const at::Tensor x = batch.x.index_select(0, tokens);
    parts.rows->push_back(at::einsum("tec,th->ech", {mask, x}).reshape({E * C, x.size(1)}));

    const at::Tensor weights = routing.weights.index_select(0, tokens).masked_select(is_kept);
    const at::Tensor dense =
        at::zeros({n, E}, weights.options()).index_put({token, expert}, weights);
    const at::Tensor combine = at::einsum("te,tec->tec", {dense, mask.to(weights.scalar_type())});
    parts.blocks->push_back({tokens, combine.reshape({n, E * C})});

    at::Tensor ids = at::full({E * C}, -1, routing.ids.options());
    const at::Tensor row = expert * C + slot;
    ids.index_put_({row}, expert.to(at::kInt));
    parts.ids->push_back(ids);
  }

  OrderOptions options_;
};

}  // namespace

std::shared_ptr<const Order> make_einsum_order(const OrderOptions& options) {
  return std::make_shared<EinsumOrder>(options);
}

}  // namespace coterie::gates
