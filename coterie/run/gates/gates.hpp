// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The door of the room: who sees which expert (gates), in which rows (orders), and what keeps the
/// experts' loads even (balance losses). A layer is
///
///     routing = gate->forward(batch)
///     rows    = order->order(batch, routing)
///     outputs = experts on rows.rows with rows.ids and rows.weights   (exchange, kernels)
///     y       = order->restore(outputs, batch, rows)
///     loss   += routing.aux_loss
///
/// Tie rule of every choice: exact ties go to the lowest expert id (expert choice: then the lowest
/// token). Logits, scores and routing weights are fp32 or fp64, never narrower.
#include "coterie/run/gates/balance_loss.hpp"
#include "coterie/run/gates/capacity.hpp"
#include "coterie/run/gates/gate.hpp"
#include "coterie/run/gates/noise.hpp"
#include "coterie/run/gates/options.hpp"
#include "coterie/run/gates/order.hpp"
#include "coterie/run/gates/prune_picks.hpp"
#include "coterie/run/gates/router_linear.hpp"
#include "coterie/run/gates/routing.hpp"
#include "coterie/run/gates/row_functions.hpp"
#include "coterie/run/gates/select.hpp"
#include "coterie/run/gates/token_batch.hpp"
