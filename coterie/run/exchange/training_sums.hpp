// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/exchange/receive_lists.hpp"
#include "coterie/run/exchange/scalars.hpp"
#include "coterie/run/exchange/send_lists.hpp"

namespace coterie::exchange {

// The sums of row_sums.hpp, in the same order and with the same bits, for rows that do not stand in
// the order of their numbers and for fp64: all sums in fp32, in fp64 for fp64 rows.

/// What the experts of a device made of rows [lists.first_row, + lists.num_rows).
struct DeviceSum {
  const ReceiveLists& lists;
  std::span<const std::int64_t> entry_offsets;  ///< [rows of the device + 1]
  const Scalars* weights = nullptr;             ///< [entries of the device]; null: all 1
  kernels::ConstMatrixView expanded;            ///< [entries of the range, H] fp32 or fp64
  kernels::MatrixView sums;                     ///< out: [any, H] fp32 or bf16, or fp64
  std::span<const std::int32_t> sum_at;         ///< [lists.num_rows] row of sums for each row
};

/// sums[sum_at[i]] = sum over the entries of row i, ascending, of weight * expanded row.
void sum_entries(const DeviceSum& task, const kernels::Execution& execution);

/// What came home for some tokens.
struct HomeSum {
  const SendLists& sent;
  const Scalars* weights = nullptr;           ///< [entries sent], classical form only; null: all 1
  kernels::ConstMatrixView returned;          ///< [any, H]
  std::span<const std::int32_t> returned_at;  ///< [rows sent] row of returned for each
  kernels::MatrixView y;                      ///< out: [all tokens, H]
};

/// y[t] for tokens [first, end): the partial sums of the devices, ascending; in the classical form
/// each first formed from its expert rows. A token without rows gets zeros.
void sum_at_home(const HomeSum& task, std::int64_t first, std::int64_t end,
                 const kernels::Execution& execution);

}  // namespace coterie::exchange
