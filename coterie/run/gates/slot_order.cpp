// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "coterie/base/error.hpp"
#include "coterie/run/gates/order_kinds.hpp"
#include "coterie/run/gates/usable_tokens.hpp"

namespace coterie::gates {
namespace {

/// SoftMoE's slots: in each sequence rows = dispatch^T x, one a slot, each with one expert and the
/// weight 1; y = combine * outputs.
class SlotOrder final : public Order {
 public:
  explicit SlotOrder(OrderOptions options) : options_(std::move(options)) {}

  OrderedRows order(const TokenBatch& batch, const Routing& routing) const override {
    COTERIE_REQUIRE(routing.dispatch.defined() && routing.combine.defined(), options_.name,
                    ": the slots order needs a gate that mixes tokens into slots (softmoe)");
    const auto E = static_cast<std::int64_t>(routing.statistics.picks_per_expert.size());
    const std::int64_t num_slots = routing.dispatch.size(1);
    const at::ScalarType type = routing.dispatch.scalar_type();
    const at::Tensor slot_ids =
        at::arange(E, routing.dispatch.options().dtype(at::kInt)).repeat_interleave(num_slots / E);
    OrderedRows result;
    result.statistics = routing.statistics;
    std::vector<at::Tensor> rows = {batch.x.narrow(0, 0, 0)};
    std::vector<at::Tensor> ids = {slot_ids.narrow(0, 0, 0)};
    for (const std::vector<std::int64_t>& list : usable_by_sequence(batch, routing.usable)) {
      if (list.empty()) {
        continue;
      }
      const at::Tensor tokens = at::tensor(list, at::kLong).to(batch.x.device());
      const at::Tensor x = batch.x.index_select(0, tokens).to(type);
      const at::Tensor dispatch = routing.dispatch.index_select(0, tokens);
      rows.push_back(at::mm(dispatch.t(), x).to(batch.x.scalar_type()));
      ids.push_back(slot_ids);
      result.blocks.push_back({tokens, routing.combine.index_select(0, tokens)});
    }
    result.rows = at::cat(rows);
    result.ids = at::cat(ids).unsqueeze(1);
    result.weights = at::ones(result.ids.sizes(), routing.dispatch.options());
    return result;
  }

  at::Tensor restore(const at::Tensor& outputs, const TokenBatch& batch,
                     const OrderedRows& rows) const override {
    return restore_blocks(outputs, batch, rows, options_.name);
  }

  const OrderOptions& options() const override { return options_; }

 private:
  OrderOptions options_;
};

}  // namespace

std::shared_ptr<const Order> make_slot_order(const OrderOptions& options) {
  return std::make_shared<SlotOrder>(options);
}

}  // namespace coterie::gates
