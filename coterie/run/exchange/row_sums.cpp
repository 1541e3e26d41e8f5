// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/row_sums.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace coterie::exchange {
namespace {

using kernels::ConstMatrixView;
using kernels::Execution;
using kernels::MatrixView;

/// Rows [first, first + count) of a matrix.
MatrixView rows_of(const MatrixView& matrix, std::int64_t first, std::int64_t count) {
  const std::int64_t element = first * matrix.row_stride;
  auto* data = static_cast<std::byte*>(matrix.data);
  return {data == nullptr ? nullptr : data + element * kernels::size_of(matrix.type), count,
          matrix.columns, matrix.row_stride, matrix.type};
}

/// Tokens whose expert rows are summed at a time in the classical form: bounds the memory of their
/// partial sums.
constexpr std::int64_t kTokensOfBlock = 1024;

/// The two sums of some tokens in the classical form: experts to a partial sum a device, these to
/// a token's result.
class ClassicalBlock {
 public:
  ClassicalBlock(const SendLists& lists, std::int64_t first_token, std::int64_t num_tokens) {
    const auto first = static_cast<std::size_t>(first_token);
    for (std::size_t token = first; token < first + static_cast<std::size_t>(num_tokens); ++token) {
      add_token(lists, token);
    }
    all_partials_.resize(expert_offsets_.size() - 1);
    std::iota(all_partials_.begin(), all_partials_.end(), 0);
  }

  void merge(const ConstMatrixView& returned, const MatrixView& y, const Execution& execution) {
    const auto num_partials = static_cast<std::int64_t>(all_partials_.size());
    std::vector<float> sums(all_partials_.size() * static_cast<std::size_t>(y.columns));
    const MatrixView partials{sums.data(), num_partials, y.columns, y.columns,
                              kernels::DType::kFloat32};
    kernels::merge_rows(returned, {expert_rows_, weights_, expert_offsets_}, partials, false,
                        execution);
    kernels::merge_rows(partials, {all_partials_, {}, partial_offsets_}, y, false, execution);
  }

 private:
  void add_token(const SendLists& lists, std::size_t token) {
    std::int64_t device_end = -1;  // end of the rows of the device of the row before
    for (auto i = static_cast<std::size_t>(lists.token_offsets[token]);
         i < static_cast<std::size_t>(lists.token_offsets[token + 1]); ++i) {
      const std::int32_t row = lists.rows_of_token[i];
      if (row >= device_end) {
        if (device_end >= 0) {
          expert_offsets_.push_back(std::ssize(expert_rows_));
        }
        device_end = *std::upper_bound(lists.row_offsets.begin(), lists.row_offsets.end(),
                                       std::int64_t{row});
      }
      expert_rows_.push_back(row);
      weights_.push_back(lists.entries.weights[static_cast<std::size_t>(row)]);
    }
    if (device_end >= 0) {
      expert_offsets_.push_back(std::ssize(expert_rows_));
    }
    partial_offsets_.push_back(std::ssize(expert_offsets_) - 1);
  }

  std::vector<std::int32_t> expert_rows_;
  std::vector<float> weights_;
  std::vector<std::int64_t> expert_offsets_ = {0};   // [partial sums + 1]
  std::vector<std::int64_t> partial_offsets_ = {0};  // [tokens + 1]
  std::vector<std::int32_t> all_partials_;           // 0, 1, 2, ...
};

}  // namespace

void sum_on_device(const RowEntries& entries, const ReceiveLists& lists,
                   const ConstMatrixView& expanded, const MatrixView& partials,
                   const Execution& execution) {
  const auto first =
      static_cast<std::size_t>(entries.offsets[static_cast<std::size_t>(lists.first_row)]);
  const auto weights = std::span(entries.weights).subspan(first, lists.expanded_of_entry.size());
  kernels::merge_rows(expanded, {lists.expanded_of_entry, weights, lists.entry_offsets},
                      rows_of(partials, lists.first_row, lists.num_rows), false, execution);
}

void order_expert_rows(const ReceiveLists& lists, const ConstMatrixView& expanded,
                       const MatrixView& rows, const Execution& execution) {
  kernels::gather_rows(expanded, lists.expanded_of_entry,
                       rows_of(rows, lists.first_row, lists.num_rows), execution);
}

void merge_at_home(const SendLists& lists, ExchangeForm form, const ConstMatrixView& returned,
                   const MatrixView& y, const Execution& execution) {
  if (form == ExchangeForm::kPerDevice) {
    kernels::merge_rows(returned, {lists.rows_of_token, {}, lists.token_offsets}, y, false,
                        execution);
    return;
  }
  for (std::int64_t token = 0; token < y.rows; token += kTokensOfBlock) {
    const std::int64_t num_tokens = std::min(kTokensOfBlock, y.rows - token);
    ClassicalBlock(lists, token, num_tokens)
        .merge(returned, rows_of(y, token, num_tokens), execution);
  }
}

}  // namespace coterie::exchange
