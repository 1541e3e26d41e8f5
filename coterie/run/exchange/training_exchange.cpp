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

bool is_row_type(DType type) {
  return type == DType::kFloat32 || type == DType::kBfloat16 || type == DType::kFloat64;
}

std::int64_t row_bytes_of(const ConstMatrixView& rows) {
  return rows.columns * kernels::size_of(rows.type);
}

/// The bytes of rows that have no gaps between them.
std::span<const std::byte> bytes_of(const ConstMatrixView& rows) {
  return {static_cast<const std::byte*>(rows.data),
          static_cast<std::size_t>(rows.rows * row_bytes_of(rows))};
}

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

void TrainingExchange::begin_chunk(const Journey& journey, std::int64_t chunk, std::int64_t columns,
                                   DType row_type) {
  const TrainingLists& lists = journey.lists;
  const BlockRange blocks = journey.blocks(chunk);
  rows_to_.assign(static_cast<std::size_t>(index_.num_devices()), 0);
  sent_rows_.clear();
  home_row_of_.resize(static_cast<std::size_t>(lists.sent.num_rows()));
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    for (std::size_t source = 0; source + 1 < lists.source_offsets.size(); ++source) {
      const BlockRange rows = lists.rows_sent(device, lists.tokens_of(source, blocks));
      for (std::int64_t row = rows.first; row < rows.end; ++row) {
        home_row_of_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(sent_rows_.size());
        sent_rows_.push_back(static_cast<std::int32_t>(row));
      }
      rows_to_[static_cast<std::size_t>(device)] += rows.end - rows.first;
    }
  }
  num_arrived_ = 0;
  rows_of_device_.resize(lists.devices.size());
  sum_at_.resize(lists.devices.size());
  for (std::size_t i = 0; i < lists.devices.size(); ++i) {
    rows_of_device_[i] = lists.devices[i].rows_of(blocks);
    lists.devices[i].places(blocks, sum_at_[i]);
    for (std::int32_t& place : sum_at_[i]) {
      place += static_cast<std::int32_t>(num_arrived_);
    }
    num_arrived_ += rows_of_device_[i].end - rows_of_device_[i].first;
  }
  sums_ =
      sums_memory_.resize_rows(num_arrived_, columns, sum_type(row_type), options_.poison_buffers);
}

MovedRows TrainingExchange::moved_rows(const Journey& journey, std::int64_t chunk) const {
  MovedRows moved;
  moved.to = rows_to_;
  const DeviceLists& device = journey.lists.devices.front();
  for (const std::int32_t source : device.arrival) {
    moved.from.push_back(device.num_rows_from(source, journey.blocks(chunk)));
  }
  return moved;
}

ConstMatrixView TrainingExchange::call_hook(const Journey& journey, std::int64_t chunk,
                                            RowHookPlace place, const ConstMatrixView& rows) const {
  if (journey.hooks == nullptr) {
    return rows;
  }
  const ConstMatrixView replaced =
      journey.hooks->replace({place, journey.direction, chunk, journey.num_chunks}, rows);
  COTERIE_REQUIRE(
      replaced.rows == rows.rows && (replaced.rows <= 1 || replaced.row_stride == replaced.columns),
      where_, ": a hook returned ", replaced.rows, " rows, not ", rows.rows, " without gaps");
  return replaced;
}

void TrainingExchange::fill_rows_out(const TrainingLists& lists, const ConstMatrixView& at_home) {
  const MatrixView out = rows_out_.resize_rows(std::ssize(sent_rows_), at_home.columns,
                                               at_home.type, options_.poison_buffers);
  const auto row_bytes = static_cast<std::size_t>(row_bytes_of(at_home));
  const auto* from = static_cast<const std::byte*>(at_home.data);
  const auto stride = at_home.row_stride * kernels::size_of(at_home.type);
  auto* to = static_cast<std::byte*>(out.data);
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto sent = static_cast<std::size_t>(sent_rows_[static_cast<std::size_t>(i)]);
      std::memcpy(to + static_cast<std::size_t>(i) * row_bytes,
                  from + lists.sent.token_of_row[sent] * stride, row_bytes);
    }
  };
  execution_.pool().run_ranges(out.rows, (1 << 16) / (row_bytes_of(at_home) + 1) + 1, copy);
}

void TrainingExchange::place_rows(const Journey& journey, std::int64_t chunk,
                                  std::int64_t first_place, ArrivedRows& arrived) {
  const BlockRange blocks = journey.blocks(chunk);
  for (std::size_t i = 0; i < arrived.row_at.size(); ++i) {
    const BlockRange rows = journey.lists.devices[i].rows_of(blocks);
    for (std::int64_t row = rows.first; row < rows.end; ++row) {
      const std::int32_t place = sum_at_[i][static_cast<std::size_t>(row - rows.first)];
      arrived.row_at[i][static_cast<std::size_t>(row)] =
          static_cast<std::int32_t>(first_place + place);
    }
  }
}

void TrainingExchange::dispatch(const Journey& journey, std::int64_t chunk, ConstMatrixView at_home,
                                ArrivedRows& arrived) {
  COTERIE_REQUIRE(at_home.rows == journey.lists.num_tokens, where_, ": ", at_home.rows,
                  " rows for ", journey.lists.num_tokens, " routed tokens");
  COTERIE_REQUIRE(is_row_type(at_home.type), where_,
                  ": rows are neither float32 nor bfloat16 nor float64");
  begin_chunk(journey, chunk, at_home.columns, at_home.type);
  if (groups_.expert == nullptr && journey.hooks == nullptr) {
    arrived.is_borrowed = true;
    arrived.rows = at_home;
    place_rows(journey, chunk, 0, arrived);
    for (std::size_t i = 0; i < arrived.row_at.size(); ++i) {
      for (std::int64_t row = rows_of_device_[i].first; row < rows_of_device_[i].end; ++row) {
        std::int32_t& at = arrived.row_at[i][static_cast<std::size_t>(row)];
        const auto sent = static_cast<std::size_t>(sent_rows_[static_cast<std::size_t>(at)]);
        at = journey.lists.sent.token_of_row[sent];
      }
    }
    return;
  }
  if (!arrived.keeps_all) {
    arrived.num_used = 0;
  }
  if (arrived.num_used == 0) {
    std::int64_t capacity = num_arrived_;
    if (arrived.keeps_all) {
      capacity = 0;
      for (const DeviceLists& device : journey.lists.devices) {
        capacity += device.num_rows();
      }
    }
    arrived.rows = arrived.memory.resize_rows(capacity, at_home.columns, at_home.type,
                                              options_.poison_buffers);
  }
  fill_rows_out(journey.lists, at_home);
  const auto row_bytes = static_cast<std::size_t>(row_bytes_of(at_home));
  const auto target =
      arrived.memory.bytes().subspan(static_cast<std::size_t>(arrived.num_used) * row_bytes,
                                     static_cast<std::size_t>(num_arrived_) * row_bytes);
  const ConstMatrixView out = call_hook(journey, chunk, RowHookPlace::kBeforeDispatch,
                                        {rows_out_.bytes().data(), std::ssize(sent_rows_),
                                         at_home.columns, at_home.columns, at_home.type});
  ConstMatrixView in = out;  // one process: what leaves is what arrives
  if (groups_.expert != nullptr) {
    MovedRows moved = moved_rows(journey, chunk);
    moved.columns = out.columns;
    moved.type = out.type;
    const auto memory = journey.hooks == nullptr
                            ? target
                            : rows_in_.resize(num_arrived_ * moved.row_bytes(), false);
    movement_->to_devices(moved, bytes_of(out), memory, Purpose::kDispatch);
    in = {memory.data(), num_arrived_, out.columns, out.columns, out.type};
  }
  in = call_hook(journey, chunk, RowHookPlace::kAfterDispatch, in);
  COTERIE_REQUIRE(in.columns == at_home.columns && in.type == at_home.type, where_,
                  ": a hook after dispatch left rows of ", in.columns, " columns, not ",
                  at_home.columns, " of the type that they had");
  copy_bytes(bytes_of(in), target);
  place_rows(journey, chunk, arrived.num_used, arrived);
  arrived.num_used += num_arrived_;
}

ChunkRows TrainingExchange::work(std::size_t i, const ArrivedRows& arrived) const {
  const BlockRange rows = rows_of_device_.at(i);
  return {rows, arrived.rows,
          std::span(arrived.row_at.at(i))
              .subspan(static_cast<std::size_t>(rows.first),
                       static_cast<std::size_t>(rows.end - rows.first)),
          sums_, sum_at_.at(i)};
}

void TrainingExchange::combine(const Journey& journey, std::int64_t chunk, MatrixView at_home) {
  COTERIE_REQUIRE(at_home.rows == journey.lists.num_tokens && at_home.columns == sums_.columns,
                  where_, ": results are [", at_home.rows, ", ", at_home.columns, "], not [",
                  journey.lists.num_tokens, ", ", sums_.columns, "]");
  const ConstMatrixView out = call_hook(journey, chunk, RowHookPlace::kBeforeCombine, sums_);
  ConstMatrixView in = out;
  if (groups_.expert != nullptr) {
    MovedRows moved = moved_rows(journey, chunk);
    moved.columns = out.columns;
    moved.type = out.type;
    std::span<std::byte> leaving = sums_memory_.bytes();
    if (out.data != sums_.data) {
      leaving = sums_out_.resize(out.rows * moved.row_bytes(), false);
      copy_bytes(bytes_of(out), leaving);
    }
    const auto memory =
        returned_.resize(std::ssize(sent_rows_) * moved.row_bytes(), options_.poison_buffers);
    movement_->to_homes(moved, leaving, memory, Purpose::kCombine);
    in = {memory.data(), std::ssize(sent_rows_), out.columns, out.columns, out.type};
  }
  in = call_hook(journey, chunk, RowHookPlace::kAfterCombine, in);
  COTERIE_REQUIRE(in.columns == sums_.columns && in.type == sums_.type, where_,
                  ": a hook after combine left rows of ", in.columns, " columns, not ",
                  sums_.columns, " of the type that they had");
  const bool weighs_at_home =
      options_.form == ExchangeForm::kPerExpert && journey.direction == Direction::kForward;
  const HomeSum home{journey.lists.sent, weighs_at_home ? &journey.lists.weights_sent : nullptr, in,
                     home_row_of_, at_home};
  for (std::size_t source = 0; source + 1 < journey.lists.source_offsets.size(); ++source) {
    const BlockRange tokens = journey.lists.tokens_of(source, journey.blocks(chunk));
    sum_at_home(home, tokens.first, tokens.end, execution_);
  }
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
