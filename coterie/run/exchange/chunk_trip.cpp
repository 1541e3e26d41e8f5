// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "coterie/base/error.hpp"
#include "coterie/run/exchange/training_exchange.hpp"
#include "coterie/run/exchange/training_sums.hpp"

// The steps of one chunk's journey.
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

/// Whether rows are read where they stand.
bool borrows(const RankGroups& groups, const Journey& journey) {
  return groups.expert == nullptr && journey.hooks == nullptr;
}

}  // namespace

void TrainingExchange::begin_trip(const Journey& journey, std::int64_t chunk, std::int64_t columns,
                                  DType row_type, ChunkTrip& trip) const {
  const TrainingLists& lists = journey.lists;
  const BlockRange blocks = journey.blocks(chunk);
  trip.chunk = chunk;
  trip.execution = execution_;
  trip.moved.to.assign(static_cast<std::size_t>(index_.num_devices()), 0);
  trip.moved.from.clear();
  trip.sent_rows.clear();
  trip.home_row_of.resize(static_cast<std::size_t>(lists.sent.num_rows()));
  for (std::int32_t device = 0; device < index_.num_devices(); ++device) {
    for (std::size_t source = 0; source + 1 < lists.source_offsets.size(); ++source) {
      const BlockRange rows = lists.rows_sent(device, lists.tokens_of(source, blocks));
      for (std::int64_t row = rows.first; row < rows.end; ++row) {
        trip.home_row_of[static_cast<std::size_t>(row)] =
            static_cast<std::int32_t>(trip.sent_rows.size());
        trip.sent_rows.push_back(static_cast<std::int32_t>(row));
      }
      trip.moved.to[static_cast<std::size_t>(device)] += rows.end - rows.first;
    }
  }
  if (groups_.expert != nullptr) {
    const DeviceLists& device = lists.devices.front();
    for (const std::int32_t source : device.arrival) {
      trip.moved.from.push_back(device.num_rows_from(source, blocks));
    }
  }
  trip.num_arrived = 0;
  trip.rows_of_device.resize(lists.devices.size());
  trip.sum_at.resize(lists.devices.size());
  for (std::size_t i = 0; i < lists.devices.size(); ++i) {
    trip.rows_of_device[i] = lists.devices[i].rows_of(blocks);
    lists.devices[i].places(blocks, trip.sum_at[i]);
    for (std::int32_t& place : trip.sum_at[i]) {
      place += static_cast<std::int32_t>(trip.num_arrived);
    }
    trip.num_arrived += trip.rows_of_device[i].end - trip.rows_of_device[i].first;
  }
  trip.sums = trip.sums_memory.resize_rows(trip.num_arrived, columns, sum_type(row_type),
                                           options_.poison_buffers);
}

ConstMatrixView TrainingExchange::call_hook(const Journey& journey, const ChunkTrip& trip,
                                            RowHookPlace place, const ConstMatrixView& rows) const {
  if (journey.hooks == nullptr) {
    return rows;
  }
  const ConstMatrixView replaced =
      journey.hooks->replace({place, journey.direction, trip.chunk, journey.num_chunks}, rows);
  COTERIE_REQUIRE(
      replaced.rows == rows.rows && (replaced.rows <= 1 || replaced.row_stride == replaced.columns),
      where_, ": a hook returned ", replaced.rows, " rows, not ", rows.rows, " without gaps");
  return replaced;
}

void TrainingExchange::make_room(const Journey& journey, std::span<ChunkTrip* const> trips,
                                 ConstMatrixView at_home, ArrivedRows& arrived) const {
  COTERIE_REQUIRE(at_home.rows == journey.lists.num_tokens, where_, ": ", at_home.rows,
                  " rows for ", journey.lists.num_tokens, " routed tokens");
  COTERIE_REQUIRE(is_row_type(at_home.type), where_,
                  ": rows are neither float32 nor bfloat16 nor float64");
  if (borrows(groups_, journey)) {
    arrived.is_borrowed = true;
    arrived.rows = at_home;
    return;
  }
  std::int64_t capacity = arrived.num_used;
  for (ChunkTrip* const trip : trips) {
    trip->first_place = capacity;
    capacity += trip->num_arrived;
  }
  if (arrived.num_used == 0) {
    std::int64_t room = capacity;
    if (arrived.keeps_all) {
      room = 0;
      for (const DeviceLists& device : journey.lists.devices) {
        room += device.num_rows();
      }
    }
    arrived.rows =
        arrived.memory.resize_rows(room, at_home.columns, at_home.type, options_.poison_buffers);
  }
  arrived.num_used = capacity;
}

void TrainingExchange::fill_rows_out(const TrainingLists& lists, const ConstMatrixView& at_home,
                                     ChunkTrip& trip) const {
  const MatrixView out = trip.rows_out.resize_rows(std::ssize(trip.sent_rows), at_home.columns,
                                                   at_home.type, options_.poison_buffers);
  const auto row_bytes = static_cast<std::size_t>(row_bytes_of(at_home));
  const auto* from = static_cast<const std::byte*>(at_home.data);
  const auto stride = at_home.row_stride * kernels::size_of(at_home.type);
  auto* to = static_cast<std::byte*>(out.data);
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto sent = static_cast<std::size_t>(trip.sent_rows[static_cast<std::size_t>(i)]);
      std::memcpy(to + static_cast<std::size_t>(i) * row_bytes,
                  from + lists.sent.token_of_row[sent] * stride, row_bytes);
    }
  };
  trip.execution.pool().run_ranges(out.rows, (1 << 16) / (row_bytes_of(at_home) + 1) + 1, copy);
}

void TrainingExchange::send_out(const Journey& journey, ConstMatrixView at_home,
                                ArrivedRows& arrived, ChunkTrip& trip) const {
  if (borrows(groups_, journey)) {
    return;
  }
  fill_rows_out(journey.lists, at_home, trip);
  const auto row_bytes = static_cast<std::size_t>(row_bytes_of(at_home));
  trip.arriving =
      arrived.memory.bytes().subspan(static_cast<std::size_t>(trip.first_place) * row_bytes,
                                     static_cast<std::size_t>(trip.num_arrived) * row_bytes);
  const ConstMatrixView out = call_hook(journey, trip, RowHookPlace::kBeforeDispatch,
                                        {trip.rows_out.bytes().data(), std::ssize(trip.sent_rows),
                                         at_home.columns, at_home.columns, at_home.type});
  trip.moved.columns = out.columns;
  trip.moved.type = out.type;
  if (groups_.expert == nullptr) {  // one process: what leaves is what arrives
    const auto bytes = bytes_of(out);
    trip.arriving = trip.rows_in.resize(std::ssize(bytes), false);
    copy_bytes(bytes, trip.arriving);
    return;
  }
  if (journey.hooks != nullptr) {
    trip.arriving = trip.rows_in.resize(trip.num_arrived * trip.moved.row_bytes(), false);
  }
  movement_->exchange_out(trip.moved, bytes_of(out), trip.arriving, Purpose::kDispatch);
}

void TrainingExchange::gather_in(const Journey& journey, ConstMatrixView at_home,
                                 ArrivedRows& arrived, ChunkTrip& trip) const {
  const bool is_borrowed = borrows(groups_, journey);
  if (!is_borrowed) {
    if (groups_.expert != nullptr) {
      movement_->gather(trip.moved, trip.arriving, Purpose::kDispatch);
    }
    const ConstMatrixView in = call_hook(journey, trip, RowHookPlace::kAfterDispatch,
                                         {trip.arriving.data(), trip.num_arrived,
                                          trip.moved.columns, trip.moved.columns, trip.moved.type});
    COTERIE_REQUIRE(in.columns == at_home.columns && in.type == at_home.type, where_,
                    ": a hook after dispatch left rows of ", in.columns, " columns, not ",
                    at_home.columns, " of the type that they had");
    const auto row_bytes = static_cast<std::size_t>(row_bytes_of(at_home));
    copy_bytes(bytes_of(in), arrived.memory.bytes().subspan(
                                 static_cast<std::size_t>(trip.first_place) * row_bytes,
                                 static_cast<std::size_t>(trip.num_arrived) * row_bytes));
  }
  for (std::size_t i = 0; i < arrived.row_at.size(); ++i) {
    const BlockRange rows = trip.rows_of_device[i];
    for (std::int64_t row = rows.first; row < rows.end; ++row) {
      const std::int32_t place = trip.sum_at[i][static_cast<std::size_t>(row - rows.first)];
      arrived.row_at[i][static_cast<std::size_t>(row)] =
          is_borrowed ? journey.lists.sent.token_of_row[static_cast<std::size_t>(
                            trip.sent_rows[static_cast<std::size_t>(place)])]
                      : static_cast<std::int32_t>(trip.first_place + place);
    }
  }
}

ChunkRows TrainingExchange::work(std::size_t i, const ArrivedRows& arrived,
                                 const ChunkTrip& trip) const {
  const BlockRange rows = trip.rows_of_device.at(i);
  return {rows, arrived.rows,
          std::span(arrived.row_at.at(i))
              .subspan(static_cast<std::size_t>(rows.first),
                       static_cast<std::size_t>(rows.end - rows.first)),
          trip.sums, trip.sum_at.at(i)};
}

void TrainingExchange::scatter_sums(const Journey& journey, ChunkTrip& trip) const {
  const ConstMatrixView out = call_hook(journey, trip, RowHookPlace::kBeforeCombine, trip.sums);
  trip.sums_leaving = out;
  if (groups_.expert == nullptr) {
    return;
  }
  trip.moved.columns = out.columns;
  trip.moved.type = out.type;
  std::span<std::byte> leaving = trip.sums_memory.bytes();
  if (out.data != trip.sums.data) {
    leaving = trip.sums_out.resize(out.rows * trip.moved.row_bytes(), false);
    copy_bytes(bytes_of(out), leaving);
    trip.sums_leaving.data = leaving.data();
  }
  movement_->scatter(trip.moved, leaving, Purpose::kCombine);
}

void TrainingExchange::bring_home(const Journey& journey, MatrixView at_home,
                                  ChunkTrip& trip) const {
  COTERIE_REQUIRE(at_home.rows == journey.lists.num_tokens && at_home.columns == trip.sums.columns,
                  where_, ": results are [", at_home.rows, ", ", at_home.columns, "], not [",
                  journey.lists.num_tokens, ", ", trip.sums.columns, "]");
  ConstMatrixView in = trip.sums_leaving;
  if (groups_.expert != nullptr) {
    const bool is_replaced = trip.sums_leaving.data != trip.sums.data;
    const auto leaving = is_replaced ? trip.sums_out.bytes() : trip.sums_memory.bytes();
    const auto memory = trip.returned.resize(std::ssize(trip.sent_rows) * trip.moved.row_bytes(),
                                             options_.poison_buffers);
    movement_->exchange_home(trip.moved, leaving, memory, Purpose::kCombine);
    in = {memory.data(), std::ssize(trip.sent_rows), trip.moved.columns, trip.moved.columns,
          trip.moved.type};
  }
  in = call_hook(journey, trip, RowHookPlace::kAfterCombine, in);
  COTERIE_REQUIRE(in.columns == trip.sums.columns && in.type == trip.sums.type, where_,
                  ": a hook after combine left rows of ", in.columns, " columns, not ",
                  trip.sums.columns, " of the type that they had");
  const bool weighs_at_home =
      options_.form == ExchangeForm::kPerExpert && journey.direction == Direction::kForward;
  const HomeSum home{journey.lists.sent, weighs_at_home ? &journey.lists.weights_sent : nullptr, in,
                     trip.home_row_of, at_home};
  for (std::size_t source = 0; source + 1 < journey.lists.source_offsets.size(); ++source) {
    const BlockRange tokens = journey.lists.tokens_of(source, journey.blocks(trip.chunk));
    sum_at_home(home, tokens.first, tokens.end, trip.execution);
  }
}

}  // namespace coterie::exchange
