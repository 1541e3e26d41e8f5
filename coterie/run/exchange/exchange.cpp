// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/exchange.hpp"

#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/exchange/row_sums.hpp"

namespace coterie::exchange {
namespace {

using comm::Purpose;
using kernels::ConstMatrixView;
using kernels::MatrixView;

/// Bytes of the blocks of `sizes`, by rank.
template <typename BytesOf>
std::vector<std::int64_t> bytes_by_rank(const std::vector<BlockSize>& sizes, BytesOf bytes_of) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(sizes.size());
  for (const BlockSize& size : sizes) {
    bytes.push_back(bytes_of(size));
  }
  return bytes;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

bool is_activation(kernels::DType type) {
  return type == kernels::DType::kFloat32 || type == kernels::DType::kBfloat16;
}

}  // namespace

Exchange::Exchange(const PlacementIndex& index, ExchangeOptions options,
                   comm::Communicator* communicator, std::string where,
                   const kernels::Execution& execution, std::shared_ptr<RowBuffers> buffers)
    : index_(index),
      options_(options),
      communicator_(communicator),
      where_(std::move(where)),
      execution_(execution),
      buffers_(buffers != nullptr ? std::move(buffers) : std::make_shared<RowBuffers>()) {
  check_exchange_options(options_);
  if (communicator_ != nullptr) {
    COTERIE_REQUIRE(communicator_->size() == index_.num_devices(), where_, ": the placement has ",
                    index_.num_devices(), " devices, but there are ", communicator_->size(),
                    " ranks");
    local_devices_ = {communicator_->rank()};
  } else {
    local_devices_.resize(static_cast<std::size_t>(index_.num_devices()));
    std::iota(local_devices_.begin(), local_devices_.end(), 0);
  }
  parts_.resize(local_devices_.size());
}

void Exchange::dispatch(ConstMatrixView x, const TokenRouting& routing) {
  check_token_routing(routing, index_, where_);
  COTERIE_REQUIRE(x.rows == routing.num_tokens, where_, ": ", x.rows, " rows of x for ",
                  routing.num_tokens, " routed tokens");
  COTERIE_REQUIRE(is_activation(x.type), where_, ": x is neither float32 nor bfloat16");
  hidden_ = x.columns;
  make_send_lists(routing, index_, options_.form, send_);

  if (communicator_ != nullptr) {
    exchange_sizes();
    exchange_metadata();
    exchange_rows(x);
    partials_ = buffers_->partials.resize_rows(received_.num_rows(), hidden_, options_.partial_type,
                                               options_.poison_buffers);
  } else {
    rows_ = x;
    // Virtual devices leave their sums where they would have come home.
    partials_ = buffers_->returned.resize_rows(send_.num_rows(), hidden_, options_.partial_type,
                                               options_.poison_buffers);
  }
  for (std::size_t i = 0; i < local_devices_.size(); ++i) {
    const auto [first, end] = rows_of_device(local_devices_[i]);
    parts_[i] = cut_rows(received_entries(), first, end, options_.max_expanded_rows);
  }
}

void Exchange::exchange_sizes() {
  const auto num_ranks = static_cast<std::size_t>(index_.num_devices());
  sizes_to_.resize(num_ranks);
  sizes_from_.assign(num_ranks, {});
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    sizes_to_[static_cast<std::size_t>(device)] = {
        static_cast<std::int32_t>(send_.num_rows_to(device)),
        static_cast<std::int32_t>(send_.num_entries_to(device))};
  }
  const std::vector<std::int64_t> bytes(num_ranks, sizeof(BlockSize));
  communicator_->all_to_all(std::as_bytes(std::span(sizes_to_)), bytes,
                            std::as_writable_bytes(std::span(sizes_from_)), bytes,
                            Purpose::kMetadata);
}

void Exchange::exchange_metadata() {
  const auto bytes_of = [&](const BlockSize& size) { return metadata_bytes(size, options_.form); };
  for (std::size_t rank = 0; rank < sizes_from_.size(); ++rank) {
    const BlockSize& size = sizes_from_[rank];
    if (size.num_rows < 0 || size.num_entries < size.num_rows) {
      fail(ErrorCode::kPeer, where_, ": rank ", rank, " announced ", size.num_rows, " rows with ",
           size.num_entries, " entries");
    }
  }
  const auto bytes_to = bytes_by_rank(sizes_to_, bytes_of);
  const auto bytes_from = bytes_by_rank(sizes_from_, bytes_of);
  const auto out = buffers_->metadata_out.resize(sum(bytes_to), options_.poison_buffers);
  const auto in = buffers_->metadata_in.resize(sum(bytes_from), options_.poison_buffers);
  std::size_t at = 0;
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    const auto size = static_cast<std::size_t>(bytes_to[static_cast<std::size_t>(device)]);
    encode_metadata(send_, device, options_.form, out.subspan(at, size));
    at += size;
  }
  communicator_->all_to_all(out, bytes_to, in, bytes_from, Purpose::kMetadata);

  received_.offsets.assign(1, 0);
  received_.slots.clear();
  received_.weights.clear();
  at = 0;
  for (std::size_t rank = 0; rank < sizes_from_.size(); ++rank) {
    const auto size = static_cast<std::size_t>(bytes_from[rank]);
    decode_metadata(in.subspan(at, size), sizes_from_[rank], options_.form,
                    index_.num_slots(communicator_->rank()), join_message(where_, ": rank ", rank),
                    received_);
    at += size;
  }
}

void Exchange::exchange_rows(ConstMatrixView x) {
  const MatrixView out =
      buffers_->rows_out.resize_rows(send_.num_rows(), hidden_, x.type, options_.poison_buffers);
  kernels::gather_rows(x, send_.token_of_row, out, execution_);
  rows_ =
      buffers_->rows_in.resize_rows(received_.num_rows(), hidden_, x.type, options_.poison_buffers);
  const std::int64_t row_bytes = hidden_ * kernels::size_of(x.type);
  const auto bytes_of = [&](const BlockSize& size) { return size.num_rows * row_bytes; };
  communicator_->all_to_all(buffers_->rows_out.bytes(), bytes_by_rank(sizes_to_, bytes_of),
                            buffers_->rows_in.bytes(), bytes_by_rank(sizes_from_, bytes_of),
                            Purpose::kDispatch);
}

std::pair<std::int64_t, std::int64_t> Exchange::rows_of_device(std::int32_t device) const {
  if (communicator_ != nullptr) {
    COTERIE_CHECK(device == communicator_->rank(), "device ", device, " is another rank's");
    return {0, received_.num_rows()};
  }
  const auto d = static_cast<std::size_t>(device);
  return {send_.row_offsets.at(d), send_.row_offsets.at(d + 1)};
}

std::int64_t Exchange::num_rows_received(std::int32_t device) const {
  const auto [first, end] = rows_of_device(device);
  return end - first;
}

std::int64_t Exchange::num_parts(std::int32_t device) const {
  const auto& cuts = parts_.at(communicator_ == nullptr ? static_cast<std::size_t>(device) : 0);
  return static_cast<std::int64_t>(cuts.size()) - 1;
}

DeviceWork Exchange::work(std::int32_t device, std::int64_t part) {
  const auto& cuts = parts_.at(communicator_ == nullptr ? static_cast<std::size_t>(device) : 0);
  const std::int64_t first = cuts.at(static_cast<std::size_t>(part));
  const std::int64_t end = cuts.at(static_cast<std::size_t>(part) + 1);
  make_receive_lists(received_entries(), index_.num_slots(device), first, end - first, lists_);
  std::span<const std::int32_t> row_of = lists_.row_of_expanded;
  if (communicator_ == nullptr) {
    token_of_expanded_.resize(row_of.size());
    for (std::size_t i = 0; i < row_of.size(); ++i) {
      token_of_expanded_[i] = send_.token_of_row[static_cast<std::size_t>(row_of[i])];
    }
    row_of = token_of_expanded_;
  }
  return {device, rows_, row_of, lists_.expert_offsets};
}

void Exchange::take_back(ConstMatrixView expanded) {
  COTERIE_CHECK(expanded.rows == std::ssize(lists_.row_of_expanded) &&
                    expanded.columns == hidden_ && expanded.type == kernels::DType::kFloat32,
                expanded.rows, " x ", expanded.columns, " outputs for ",
                lists_.row_of_expanded.size(), " rows");
  if (options_.form == ExchangeForm::kPerDevice) {
    sum_on_device(received_entries(), lists_, expanded, partials_, execution_);
  } else {
    order_expert_rows(lists_, expanded, partials_, execution_);
  }
}

void Exchange::combine(MatrixView y) {
  COTERIE_REQUIRE(y.rows + 1 == std::ssize(send_.token_offsets) && y.columns == hidden_ &&
                      is_activation(y.type),
                  where_, ": y is ", y.rows, " x ", y.columns, ", x was ",
                  std::ssize(send_.token_offsets) - 1, " x ", hidden_);
  if (communicator_ == nullptr) {
    merge_at_home(send_, options_.form, partials_, y, execution_);
    return;
  }
  const MatrixView returned = buffers_->returned.resize_rows(
      send_.num_rows(), hidden_, options_.partial_type, options_.poison_buffers);
  const std::int64_t row_bytes = hidden_ * kernels::size_of(options_.partial_type);
  const auto bytes_of = [&](const BlockSize& size) { return size.num_rows * row_bytes; };
  communicator_->all_to_all(buffers_->partials.bytes(), bytes_by_rank(sizes_from_, bytes_of),
                            buffers_->returned.bytes(), bytes_by_rank(sizes_to_, bytes_of),
                            Purpose::kCombine);
  merge_at_home(send_, options_.form, returned, y, execution_);
}

}  // namespace coterie::exchange
