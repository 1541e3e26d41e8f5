// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/exchange/receive_lists.hpp"
#include "coterie/run/exchange/send_lists.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

// Sums in one fixed order, so that results do not depend on ranks, threads or batches:
//   on a device:  partial = ((0 + w_a row_a) + w_b row_b) + ...   experts a < b < ... , fp32
//   at home:      result  = ((0 + partial_0) + partial_1) + ...   devices ascending, fp32
// The classical form gets rows of experts home and forms the same partial sums there.

/// Partial sums of the rows of `lists` into rows [lists.first_row, ...) of `partials`.
/// `expanded` is [entries of the range, hidden] fp32.
void sum_on_device(const RowEntries& entries, const ReceiveLists& lists,
                   const kernels::ConstMatrixView& expanded, const kernels::MatrixView& partials,
                   const kernels::Execution& execution);

/// Expert rows in the order of the entries (one a row) into rows [lists.first_row, ...) of `rows`.
void order_expert_rows(const ReceiveLists& lists, const kernels::ConstMatrixView& expanded,
                       const kernels::MatrixView& rows, const kernels::Execution& execution);

/// Results [num_tokens, hidden] out of what came back: `returned` is [rows sent, hidden].
void merge_at_home(const SendLists& lists, ExchangeForm form,
                   const kernels::ConstMatrixView& returned, const kernels::MatrixView& y,
                   const kernels::Execution& execution);

}  // namespace coterie::exchange
