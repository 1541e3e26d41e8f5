// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coterie/run/gates/order.hpp"

/// The members of the family, for make_order alone.
namespace coterie::gates {

std::shared_ptr<const Order> make_index_order(const OrderOptions& options);
std::shared_ptr<const Order> make_einsum_order(const OrderOptions& options);
std::shared_ptr<const Order> make_slot_order(const OrderOptions& options);

/// y of rows that were made in blocks: 0 for tokens of no block.
at::Tensor restore_blocks(const at::Tensor& outputs, const TokenBatch& batch,
                          const OrderedRows& rows, const std::string& name);

/// kBadInput unless the routing is made of picks and fits the batch.
void require_picks(const OrderOptions& options, const TokenBatch& batch, const Routing& routing);

}  // namespace coterie::gates
