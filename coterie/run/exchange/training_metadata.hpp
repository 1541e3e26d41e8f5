// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/training_lists.hpp"

namespace coterie::exchange {

// What travels once a batch for the rows that a rank sends to a device in training:
//
//   weights f32 or f64 [entries] | slots u16 [entries] | kPerDevice: entries of each row u8 [rows]
//
// without padding. Unlike inference the classical form sends weights too: the device needs them to
// form the gradients of its experts. Before it the ranks exchange the announcement, i32 [blocks of
// the sender + 1]: rows of each block, then the number of entries.

/// What a rank announces to another.
struct TrainingBlockSize {
  std::int64_t num_rows = 0;
  std::int64_t num_entries = 0;
};

/// Bytes of the block for `size` with weights of a type.
std::int64_t training_metadata_bytes(const TrainingBlockSize& size, ExchangeForm form,
                                     kernels::DType weight_type);

/// Writes the block for one device; `out` has exactly training_metadata_bytes.
void encode_training_metadata(const TrainingLists& lists, std::int32_t device, ExchangeForm form,
                              std::span<std::byte> out);

/// Appends one source's rows to `entries` (weights apart, to `weights`). Throws kPeer naming
/// `source` if sizes, counts and slots do not fit together.
void decode_training_metadata(std::span<const std::byte> block, const TrainingBlockSize& size,
                              ExchangeForm form, std::int32_t num_slots, const std::string& source,
                              RowEntries& entries, Scalars& weights);

}  // namespace coterie::exchange
