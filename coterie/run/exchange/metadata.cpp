// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/metadata.hpp"

#include <cstring>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

/// Writes values one behind the other, wherever they fall (blocks have no padding).
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : rest_(out) {}
  template <typename T>
  void write(std::span<const T> values) {
    COTERIE_CHECK(values.size_bytes() <= rest_.size(), rest_.size(), " bytes left of a block");
    if (!values.empty()) {
      std::memcpy(rest_.data(), values.data(), values.size_bytes());
    }
    rest_ = rest_.subspan(values.size_bytes());
  }
  [[nodiscard]] std::size_t bytes_left() const { return rest_.size(); }

 private:
  std::span<std::byte> rest_;
};

/// Reads them back; the caller has checked the size.
template <typename T>
void read(std::span<const std::byte>& rest, std::span<T> values) {
  if (!values.empty()) {
    std::memcpy(values.data(), rest.data(), values.size_bytes());
  }
  rest = rest.subspan(values.size_bytes());
}

void decode_counts(std::span<const std::byte> counts, const BlockSize& size,
                   const std::string& source, RowEntries& entries) {
  std::int64_t total = 0;
  for (const std::byte byte : counts) {
    total += std::to_integer<std::int64_t>(byte);
    entries.offsets.push_back(entries.offsets.back() + std::to_integer<std::int64_t>(byte));
  }
  if (total != size.num_entries) {
    fail(ErrorCode::kPeer, source, ": its ", size.num_rows, " rows have ", total,
         " entries, but it announced ", size.num_entries);
  }
}

}  // namespace

std::int64_t metadata_bytes(const BlockSize& size, ExchangeForm form) {
  if (form == ExchangeForm::kPerExpert) {
    return std::int64_t{size.num_rows} * 2;
  }
  return std::int64_t{size.num_entries} * 6 + size.num_rows;
}

void encode_metadata(const SendLists& lists, std::int32_t device, ExchangeForm form,
                     std::span<std::byte> out) {
  const auto d = static_cast<std::size_t>(device);
  const auto first_row = static_cast<std::size_t>(lists.row_offsets[d]);
  const auto num_rows = static_cast<std::size_t>(lists.num_rows_to(device));
  const auto& entries = lists.entries;
  const auto first = static_cast<std::size_t>(entries.offsets[first_row]);
  const auto count = static_cast<std::size_t>(lists.num_entries_to(device));

  Writer writer(out);
  if (form == ExchangeForm::kPerDevice) {
    writer.write(std::span(entries.weights).subspan(first, count));
  }
  writer.write(std::span(entries.slots).subspan(first, count));
  if (form == ExchangeForm::kPerDevice) {
    std::vector<std::uint8_t> counts(num_rows);
    for (std::size_t r = 0; r < num_rows; ++r) {
      counts[r] = static_cast<std::uint8_t>(entries.offsets[first_row + r + 1] -
                                            entries.offsets[first_row + r]);
    }
    writer.write(std::span<const std::uint8_t>(counts));
  }
  COTERIE_CHECK(writer.bytes_left() == 0, writer.bytes_left(), " bytes too many for device ",
                device);
}

void decode_metadata(std::span<const std::byte> block, const BlockSize& size, ExchangeForm form,
                     std::int32_t num_slots, const std::string& source, RowEntries& entries) {
  const bool is_classical = form == ExchangeForm::kPerExpert;
  if (size.num_rows < 0 || size.num_entries < size.num_rows ||
      (is_classical && size.num_entries != size.num_rows) ||
      static_cast<std::int64_t>(block.size()) != metadata_bytes(size, form)) {
    fail(ErrorCode::kPeer, source, ": ", size.num_rows, " rows with ", size.num_entries,
         " entries do not fit ", block.size(), " bytes of metadata in form ", name_of(form));
  }
  const auto first = static_cast<std::size_t>(entries.num_entries());
  const auto count = static_cast<std::size_t>(size.num_entries);
  entries.weights.resize(first + count, 1.0F);
  entries.slots.resize(first + count);
  if (!is_classical) {
    read(block, std::span(entries.weights).subspan(first));
  }
  read(block, std::span(entries.slots).subspan(first));
  for (std::size_t entry = first; entry < first + count; ++entry) {
    if (entries.slots[entry] >= num_slots) {
      fail(ErrorCode::kPeer, source, ": it asks for slot ", entries.slots[entry], " of ", num_slots,
           ": its placement is another one");
    }
  }
  if (is_classical) {
    for (std::int32_t row = 0; row < size.num_rows; ++row) {
      entries.offsets.push_back(entries.offsets.back() + 1);
    }
  } else {
    decode_counts(block, size, source, entries);
  }
}

}  // namespace coterie::exchange
