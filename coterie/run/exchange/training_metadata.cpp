// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/training_metadata.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

/// Copies bytes to the front of `out` and leaves the rest of it.
void append(std::span<std::byte>& out, std::span<const std::byte> bytes) {
  COTERIE_CHECK(bytes.size() <= out.size(), out.size(), " bytes left of a block");
  std::copy(bytes.begin(), bytes.end(), out.begin());
  out = out.subspan(bytes.size());
}

/// Takes bytes from the front of `block`; the caller has checked the size.
void take(std::span<const std::byte>& block, std::span<std::byte> bytes) {
  std::copy_n(block.begin(), bytes.size(), bytes.begin());
  block = block.subspan(bytes.size());
}

}  // namespace

std::int64_t training_metadata_bytes(const TrainingBlockSize& size, ExchangeForm form,
                                     kernels::DType weight_type) {
  return size.num_entries * (kernels::size_of(weight_type) + 2) +
         (form == ExchangeForm::kPerDevice ? size.num_rows : 0);
}

void encode_training_metadata(const TrainingLists& lists, std::int32_t device, ExchangeForm form,
                              std::span<std::byte> out) {
  const auto d = static_cast<std::size_t>(device);
  const RowEntries& entries = lists.sent.entries;
  const auto first_row = static_cast<std::size_t>(lists.sent.row_offsets[d]);
  const auto num_rows = static_cast<std::size_t>(lists.sent.num_rows_to(device));
  const auto first = static_cast<std::size_t>(entries.offsets[first_row]);
  const auto count = static_cast<std::size_t>(lists.sent.num_entries_to(device));
  const auto weight_bytes = static_cast<std::size_t>(kernels::size_of(lists.weights_sent.type()));

  append(out, lists.weights_sent.bytes().subspan(first * weight_bytes, count * weight_bytes));
  append(out, std::as_bytes(std::span(entries.slots).subspan(first, count)));
  if (form == ExchangeForm::kPerDevice) {
    std::vector<std::uint8_t> counts(num_rows);
    for (std::size_t r = 0; r < num_rows; ++r) {
      counts[r] = static_cast<std::uint8_t>(entries.offsets[first_row + r + 1] -
                                            entries.offsets[first_row + r]);
    }
    append(out, std::as_bytes(std::span(counts)));
  }
  COTERIE_CHECK(out.empty(), out.size(), " bytes too many for device ", device);
}

void decode_training_metadata(std::span<const std::byte> block, const TrainingBlockSize& size,
                              ExchangeForm form, std::int32_t num_slots, const std::string& source,
                              RowEntries& entries, Scalars& weights) {
  const bool is_classical = form == ExchangeForm::kPerExpert;
  if (size.num_rows < 0 || size.num_entries < size.num_rows ||
      (is_classical && size.num_entries != size.num_rows) ||
      std::ssize(block) != training_metadata_bytes(size, form, weights.type())) {
    fail(ErrorCode::kPeer, source, ": ", size.num_rows, " rows with ", size.num_entries,
         " entries do not fit ", block.size(), " bytes of metadata in form ", name_of(form));
  }
  const auto first = static_cast<std::size_t>(entries.num_entries());
  const auto count = static_cast<std::size_t>(size.num_entries);
  const auto weight_bytes = static_cast<std::size_t>(kernels::size_of(weights.type()));
  weights.resize(static_cast<std::int64_t>(first + count), weights.type());
  take(block, weights.bytes().subspan(first * weight_bytes));
  entries.slots.resize(first + count);
  take(block, std::as_writable_bytes(std::span(entries.slots).subspan(first)));
  for (std::size_t entry = first; entry < first + count; ++entry) {
    if (entries.slots[entry] >= num_slots) {
      fail(ErrorCode::kPeer, source, ": it asks for slot ", entries.slots[entry], " of ", num_slots,
           ": its placement is another one");
    }
  }
  for (std::int64_t row = 0; row < size.num_rows; ++row) {
    const std::int64_t in_row =
        is_classical ? 1 : std::to_integer<std::int64_t>(block[static_cast<std::size_t>(row)]);
    entries.offsets.push_back(entries.offsets.back() + in_row);
  }
  if (entries.num_entries() != static_cast<std::int64_t>(first + count)) {
    fail(ErrorCode::kPeer, source, ": its ", size.num_rows, " rows have ",
         entries.num_entries() - static_cast<std::int64_t>(first), " entries, but it announced ",
         size.num_entries);
  }
}

}  // namespace coterie::exchange
