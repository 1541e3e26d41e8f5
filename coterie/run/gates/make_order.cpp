// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

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

at::Tensor restore_blocks(const at::Tensor& outputs, const TokenBatch& batch,
                          const OrderedRows& rows, const std::string& name) {
  COTERIE_REQUIRE(outputs.dim() == 2 && outputs.size(0) == rows.rows.size(0), name,
                  ": outputs of shape ", outputs.sizes(), " for ", rows.rows.size(0), " rows");
  if (rows.blocks.empty()) {
    return at::zeros({batch.num_tokens(), outputs.size(1)}, outputs.options()) +
           0.0 * outputs.sum();
  }
  std::vector<at::Tensor> tokens;
  std::vector<at::Tensor> parts;
  std::int64_t row = 0;
  for (const SlotBlock& block : rows.blocks) {
    const std::int64_t count = block.combine.size(1);
    const at::Tensor part = outputs.narrow(0, row, count).to(block.combine.scalar_type());
    parts.push_back(at::mm(block.combine, part).to(outputs.scalar_type()));
    tokens.push_back(block.tokens);
    row += count;
  }
  return at::zeros({batch.num_tokens(), outputs.size(1)}, outputs.options())
      .index_copy(0, at::cat(tokens), at::cat(parts));
}

std::shared_ptr<const Order> make_order(const OrderOptions& options) {
  check_order_options(options);
  switch (options.kind) {
    case OrderKind::kIndex: return make_index_order(options);
    case OrderKind::kEinsum: return make_einsum_order(options);
    case OrderKind::kSlots: return make_slot_order(options);
  }
  fail(ErrorCode::kInternal, options.name, ": no such order");
}

}  // namespace coterie::gates
