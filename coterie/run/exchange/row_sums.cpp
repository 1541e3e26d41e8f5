// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/row_sums.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/// sum[c] += weight * row[c]; without the weight where it is null.
void add_row(ConstMatrixView rows, std::int64_t row, const float* weight, std::span<float> sum) {
  const auto columns = sum.size();
  if (rows.type == DType::kFloat32) {
    const auto* values = rows.row<float>(row);
    if (weight == nullptr) {
      for (std::size_t c = 0; c < columns; ++c) {
        sum[c] += values[c];
      }
    } else {
      const float w = *weight;
      for (std::size_t c = 0; c < columns; ++c) {
        sum[c] += w * values[c];
      }
    }
    return;
  }
  const auto* values = rows.row<std::uint16_t>(row);
  const float w = weight == nullptr ? 1.0F : *weight;
  for (std::size_t c = 0; c < columns; ++c) {
    sum[c] += w * from_bfloat16(values[c]);
  }
}

void store_row(std::span<const float> values, MatrixView to, std::int64_t row) {
  if (to.type == DType::kFloat32) {
    std::copy(values.begin(), values.end(), to.row<float>(row));
    return;
  }
  auto* out = to.row<std::uint16_t>(row);
  std::transform(values.begin(), values.end(), out, to_bfloat16);
}

/// The partial sums of a token's rows of one device in the classical form: the device is the one of
/// `rows_of_token[i]`; returns the first i behind it.
std::int64_t sum_of_device(const SendLists& lists, ConstMatrixView returned, std::int64_t i,
                           std::int64_t end, std::span<float> partial) {
  const auto row_at = [&](std::int64_t at) {
    return lists.rows_of_token[static_cast<std::size_t>(at)];
  };
  const auto device_end = *std::upper_bound(lists.row_offsets.begin(), lists.row_offsets.end(),
                                            std::int64_t{row_at(i)});
  std::fill(partial.begin(), partial.end(), 0.0F);
  for (; i < end && row_at(i) < device_end; ++i) {
    add_row(returned, row_at(i), &lists.entries.weights[static_cast<std::size_t>(row_at(i))],
            partial);
  }
  return i;
}

}  // namespace

void copy_row(ConstMatrixView from, std::int64_t source, MatrixView to, std::int64_t target) {
  if (from.type == to.type) {
    std::memcpy(to.row<std::byte>(0) + target * to.row_stride * kernels::size_of(to.type),
                from.row<std::byte>(0) + source * from.row_stride * kernels::size_of(from.type),
                static_cast<std::size_t>(from.columns * kernels::size_of(from.type)));
    return;
  }
  if (from.type == DType::kFloat32) {
    store_row({from.row<float>(source), static_cast<std::size_t>(from.columns)}, to, target);
    return;
  }
  std::transform(from.row<std::uint16_t>(source), from.row<std::uint16_t>(source) + from.columns,
                 to.row<float>(target), from_bfloat16);
}

void sum_on_device(const RowEntries& entries, const ReceiveLists& lists, ConstMatrixView expanded,
                   MatrixView partials) {
  std::vector<float> sum(static_cast<std::size_t>(partials.columns));
  const std::int64_t first_entry = entries.offsets[static_cast<std::size_t>(lists.first_row)];
  for (std::int64_t row = lists.first_row; row < lists.first_row + lists.num_rows; ++row) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::int64_t entry = entries.offsets[static_cast<std::size_t>(row)];
         entry < entries.offsets[static_cast<std::size_t>(row) + 1]; ++entry) {
      add_row(expanded, lists.expanded_of_entry[static_cast<std::size_t>(entry - first_entry)],
              &entries.weights[static_cast<std::size_t>(entry)], sum);
    }
    store_row(sum, partials, row);
  }
}

void order_expert_rows(const ReceiveLists& lists, ConstMatrixView expanded, MatrixView rows) {
  for (std::int64_t i = 0; i < lists.num_rows; ++i) {
    copy_row(expanded, lists.expanded_of_entry[static_cast<std::size_t>(i)], rows,
             lists.first_row + i);
  }
}

void merge_at_home(const SendLists& lists, ExchangeForm form, ConstMatrixView returned,
                   MatrixView y) {
  const auto hidden = static_cast<std::size_t>(y.columns);
  std::vector<float> sum(hidden);
  std::vector<float> partial(hidden);
  for (std::int64_t token = 0; token < y.rows; ++token) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    const std::int64_t end = lists.token_offsets[static_cast<std::size_t>(token) + 1];
    for (std::int64_t i = lists.token_offsets[static_cast<std::size_t>(token)]; i < end;) {
      if (form == ExchangeForm::kPerDevice) {
        add_row(returned, lists.rows_of_token[static_cast<std::size_t>(i)], nullptr, sum);
        ++i;
      } else {
        i = sum_of_device(lists, returned, i, end, partial);
        for (std::size_t c = 0; c < hidden; ++c) {
          sum[c] += partial[c];
        }
      }
    }
    store_row(sum, y, token);
  }
}

}  // namespace coterie::exchange
