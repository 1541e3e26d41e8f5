// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "coterie/run/gates/options.hpp"
#include "coterie/run/gates/routing.hpp"
#include "coterie/run/gates/token_batch.hpp"

namespace coterie::gates {

/// Rows of the slots of some tokens (a sequence, or all tokens of the call), and their way back.
struct SlotBlock {
  at::Tensor tokens;   ///< int64 [n] places in the batch, ascending
  at::Tensor combine;  ///< [n, rows of the block], differentiable: y[tokens] = combine * outputs
};

/// Rows for the exchange, and what it needs to know of each.
struct OrderedRows {
  at::Tensor rows;                ///< [R, H] in x's type, differentiable
  at::Tensor ids;                 ///< int32 [R, k] distinct in a row; -1: no expert, adds exactly 0
  at::Tensor weights;             ///< [R, k] fp32 or fp64, differentiable; 0 where the id is -1
  std::vector<SlotBlock> blocks;  ///< einsum and slots; their rows follow one another
  at::Tensor counts;              ///< on a GPU: the Routing's counts, if they still hold
  RoutingStatistics statistics;   ///< the gate's, with the picks and tokens that were dropped
};

/// Turns tokens into rows for the experts, and the experts' results back into tokens. Holds no
/// state; thread-safe.
///
///     rows = order(batch, routing)
///     outputs[r] = sum over i of rows.weights[r, i] * expert(rows.ids[r, i])(rows.rows[r])
///     y = restore(outputs, batch, rows)
class Order {
 public:
  Order() = default;
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
  virtual ~Order() = default;

  /// kBadInput where batch and routing do not fit each other or the order; kUnsupported where it
  /// needs whole sequences and meets less.
  [[nodiscard]] virtual OrderedRows order(const TokenBatch& batch,
                                          const Routing& routing) const = 0;
  /// outputs [R, H] to y [T, H], differentiable. Tokens without an expert get 0, so that in a
  /// residual layer they pass unchanged.
  [[nodiscard]] virtual at::Tensor restore(const at::Tensor& outputs, const TokenBatch& batch,
                                           const OrderedRows& rows) const = 0;
  [[nodiscard]] virtual const OrderOptions& options() const = 0;
};

/// The order of that kind; kBadInput as check_order_options.
std::shared_ptr<const Order> make_order(const OrderOptions& options);

}  // namespace coterie::gates
