// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/base/matrix.hpp"
#include "coterie/run/exchange/row_entries.hpp"
#include "coterie/run/exchange/token_routing.hpp"

namespace coterie::exchange {

// The bidirectional re-index matrices (Occult, Algorithms 3 and 5), dense and slow: the reference
// for the lists in send_lists.hpp and receive_lists.hpp, which hold the same numbers without the
// empty places.
//
// Eight tokens a..h of one rank, two devices, two experts on each (device 0: experts 0 1, device 1:
// experts 2 3), top-2:
//
//     token       a   b   c   d   e   f   g   h
//     experts    0 1 0 2 2 3 1 3 0 1 2 3 1 2 0 3
//
//   reindex_by_device: rows are numbered device by device, tokens ascending. A token with both
//   experts on one device has one row there: 12 rows instead of 16, 1.5 a token.
//
//     device 0    0   1   .   2   3   .   4   5        '.' is -1: no row
//     device 1    .   6   7   8   .   9  10  11
//
//   The rows themselves are the send buffer, in this order; each device's part is contiguous:
//
//     row         0   1   2   3   4   5 | 6   7   8   9  10  11
//     token       a   b   d   e   g   h | b   c   d   f   g   h
//                   to device 0           to device 1
//
//   reindex_by_expert on device 0, which received rows a b d e g h (from this one rank): expanded
//   rows are numbered expert by expert, received rows ascending, so each expert's are contiguous:
//
//     received    a   b   d   e   g   h
//     expert 0    0   1   .   2   .   3      expanded rows a b e h
//     expert 1    4   .   5   6   7   .      expanded rows a d e g
//
// Read along a row, a matrix scatters (one row to many); read down a column, it merges (many rows
// to one): both directions, hence the name.

/// [num_devices, num_tokens] row of the send buffer for each (device, token), or -1. Form
/// kPerDevice. The routing must have been checked.
Matrix<std::int32_t> reindex_by_device(const TokenRouting& routing, const PlacementIndex& index);

/// [num_slots, rows] expanded row for each (local slot, received row), or -1.
Matrix<std::int32_t> reindex_by_expert(const RowEntries& received, std::int32_t num_slots);

}  // namespace coterie::exchange
