// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/training_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/run/exchange/training_sums.hpp"

namespace coterie::exchange {
namespace {

using comm::Purpose;
using kernels::ConstMatrixView;
using kernels::DType;
using kernels::MatrixView;

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty() && from.data() != to.data()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

}  // namespace

void ArrivedRows::begin(const TrainingLists& lists, bool keep_all) {
  rows = {};
  num_used = 0;
  keeps_all = keep_all;
  is_borrowed = false;
  row_at.resize(lists.devices.size());
  for (std::size_t i = 0; i < row_at.size(); ++i) {
    row_at[i].resize(static_cast<std::size_t>(lists.devices[i].num_rows()));
  }
}

TrainingExchange::TrainingExchange(const PlacementIndex& index, ExchangeOptions options,
                                   RankGroups groups, std::string where,
                                   const kernels::Execution& execution,
                                   std::shared_ptr<RowMovement> movement)
    : index_(index),
      options_(options),
      groups_(groups),
      where_(std::move(where)),
      execution_(execution),
      movement_(std::move(movement)) {
  check_exchange_options(options_);
  if (groups_.expert != nullptr) {
    COTERIE_REQUIRE(groups_.expert->size() == index_.num_devices(), where_, ": the placement has ",
                    index_.num_devices(), " devices, but there are ", groups_.expert->size(),
                    " ranks");
    local_devices_ = {groups_.expert->rank()};
    if (movement_ == nullptr) {
      movement_ = std::make_shared<GroupMovement>(groups_);
    }
  } else {
    COTERIE_REQUIRE(groups_.shard == nullptr, where_,
                    ": experts cut over ranks need an expert group, if only of one rank");
    local_devices_.resize(static_cast<std::size_t>(index_.num_devices()));
    std::iota(local_devices_.begin(), local_devices_.end(), 0);
  }
}

DType TrainingExchange::sum_type(DType row_type) const {
  return row_type == DType::kFloat64 ? DType::kFloat64 : options_.partial_type;
}

void TrainingExchange::dispatch(const Journey& journey, std::int64_t chunk, ConstMatrixView at_home,
                                ArrivedRows& arrived) {
  begin_trip(journey, chunk, at_home.columns, at_home.type, current_);
  if (!arrived.keeps_all) {
    arrived.num_used = 0;
  }
  ChunkTrip* const trip = &current_;
  make_room(journey, {&trip, 1}, at_home, arrived);
  send_out(journey, at_home, arrived, current_);
  gather_in(journey, at_home, arrived, current_);
}

void TrainingExchange::combine(const Journey& journey, std::int64_t chunk, MatrixView at_home) {
  COTERIE_CHECK(chunk == current_.chunk, "chunk ", chunk, " comes home while chunk ",
                current_.chunk, " is under way");
  scatter_sums(journey, current_);
  bring_home(journey, at_home, current_);
}

namespace {

/// to[pick of entry] = the entry's number; picks without an entry become 0.
template <typename T>
void scatter_to_picks(const TrainingLists& lists, const T* entries,
                      const MatrixView& grad_weights) {
  for (std::int64_t token = 0; token < grad_weights.rows; ++token) {
    std::fill_n(grad_weights.row<T>(token), grad_weights.columns, T{0});
  }
  for (std::size_t entry = 0; entry < lists.sent.pick_of_entry.size(); ++entry) {
    const std::int32_t pick = lists.sent.pick_of_entry[entry];
    grad_weights.row<T>(pick / lists.top_k)[pick % lists.top_k] = entries[entry];
  }
}

}  // namespace

void TrainingExchange::return_weight_gradients(const TrainingLists& lists,
                                               std::span<const Scalars> by_device,
                                               MatrixView grad_weights) {
  const DType type = lists.weights_sent.type();
  COTERIE_CHECK(grad_weights.type == type && grad_weights.rows == lists.num_tokens &&
                    grad_weights.columns == lists.top_k && by_device.size() == lists.devices.size(),
                "gradients of routing weights of another shape or type");
  MovedRows moved;
  moved.columns = 1;
  moved.type = type;
  std::vector<std::int32_t> index;
  Scalars arrived;  // in order of arrival, device by device
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < lists.devices.size(); ++i) {
    const DeviceLists& device = lists.devices[i];
    index.clear();
    for (const std::int32_t source : device.arrival) {
      const auto before = std::ssize(index);
      for (std::int64_t block = 0; block < lists.num_blocks; ++block) {
        const Segment rows = device.segment(block, source);
        const auto first = static_cast<std::size_t>(rows.first_row);
        const auto end = static_cast<std::size_t>(rows.first_row + rows.num_rows);
        for (std::int64_t e = device.entries.offsets[first]; e < device.entries.offsets[end]; ++e) {
          index.push_back(static_cast<std::int32_t>(e));
        }
      }
      moved.from.push_back(std::ssize(index) - before);
    }
    arrived.gather(by_device[i], index);
    bytes.insert(bytes.end(), arrived.bytes().begin(), arrived.bytes().end());
  }
  Scalars returned(std::ssize(lists.sent.pick_of_entry), type);
  if (groups_.expert == nullptr) {
    copy_bytes(bytes, returned.bytes());
  } else {
    for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
      moved.to.push_back(lists.sent.num_entries_to(device));
    }
    movement_->to_homes(moved, bytes, returned.bytes(), Purpose::kMetadata);
  }
  if (type == DType::kFloat64) {
    scatter_to_picks(lists, returned.data<double>(), grad_weights);
  } else {
    scatter_to_picks(lists, returned.data<float>(), grad_weights);
  }
}

}  // namespace coterie::exchange
