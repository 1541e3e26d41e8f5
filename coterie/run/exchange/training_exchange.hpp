// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coterie/run/exchange/byte_buffer.hpp"
#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/placement_index.hpp"
#include "coterie/run/exchange/row_hooks.hpp"
#include "coterie/run/exchange/row_movement.hpp"
#include "coterie/run/exchange/token_routing.hpp"
#include "coterie/run/exchange/training_lists.hpp"

namespace coterie::exchange {

/// Rows as they stand at the devices of this process: those of one chunk, or of all of them where
/// the backward needs them again.
struct ArrivedRows {
  kernels::ConstMatrixView rows;                  ///< [any, H]
  std::vector<std::vector<std::int32_t>> row_at;  ///< [local devices][rows of the device] in rows
  std::int64_t num_used = 0;                      ///< rows of `memory` that are taken
  bool keeps_all = false;
  bool is_borrowed = false;  ///< `rows` are the rows at home, not in `memory`
  ByteBuffer memory;

  /// Empties it. With `keep_all` it will hold the rows of all chunks, else those of one at a time.
  void begin(const TrainingLists& lists, bool keep_all);
};

/// One direction of one batch.
struct Journey {
  const TrainingLists& lists;
  Direction direction = Direction::kForward;
  std::int64_t num_chunks = 1;
  RowHooks* hooks = nullptr;
  /// [num_chunks] shares of the blocks, sum 1; empty: chunks of equal size.
  std::span<const double> shares = {};

  [[nodiscard]] BlockRange blocks(std::int64_t chunk) const {
    return shares.empty() ? blocks_of_chunk(lists.num_blocks, num_chunks, chunk)
                          : blocks_of_share(lists.num_blocks, shares, chunk);
  }
};

/// One chunk of a journey while it is under way: whose rows go where, and the memory that they
/// travel in. Chunks that are under way at the same time have one each.
struct ChunkTrip {
  std::int64_t chunk = 0;
  MovedRows moved;                                ///< between ranks; `to` also without
  std::vector<std::int32_t> sent_rows;            ///< [rows that leave] their numbers in `sent`
  std::vector<std::int32_t> home_row_of;          ///< [rows sent] the reverse
  std::vector<BlockRange> rows_of_device;         ///< [local devices]
  std::vector<std::vector<std::int32_t>> sum_at;  ///< [local devices]
  std::int64_t num_arrived = 0;                   ///< rows of all local devices
  std::int64_t first_place = 0;                   ///< of them in ArrivedRows
  kernels::MatrixView sums;
  kernels::Execution execution;  ///< for its copies and sums at home
  ByteBuffer rows_out;
  ByteBuffer rows_in;
  ByteBuffer sums_memory;
  ByteBuffer sums_out;
  ByteBuffer returned;
  std::span<std::byte> arriving;          ///< what D fills in part and AG completes
  kernels::ConstMatrixView sums_leaving;  ///< after RS
};

/// The rows of one chunk on one local device, by the numbering of DeviceLists.
struct ChunkRows {
  BlockRange rows;                       ///< rows [first, end) of the device
  kernels::ConstMatrixView inputs;       ///< [any, H]
  std::span<const std::int32_t> row_at;  ///< [end - first] row of inputs for each
  kernels::MatrixView sums;              ///< [any, H] where the sums are expected
  std::span<const std::int32_t> sum_at;  ///< [end - first] row of sums for each
};

/// The exchange of a layer that is trained. As Exchange, one row a (token, device) or a (token,
/// expert), but chunk by chunk and in both directions over the same lists:
///
///     lists = exchange.make_lists(routing, weights);
///     for each chunk:  dispatch(x), experts on work(), combine(y)          forward
///     for each chunk:  dispatch(dL/dy), experts' backward, combine(dL/dx)  backward, other chunks
///     return_weight_gradients(...)
///
/// Or step by step, for chunks that overlap: begin_trip for all, make_room once, then for each
/// send_out (D), gather_in (AG), experts, scatter_sums (RS), bring_home (C), in any order that
/// keeps this one. Steps of different chunks may run in different threads if no two threads are in
/// an exchange between the same ranks: one makes all D and C, one (or the same) all AG and RS. Not
/// with hooks.
///
/// With groups, each rank makes the same collectives whatever the routing, also without tokens:
/// 3 a batch for the lists, 2 a chunk and direction, 1 for the weight gradients; with shards more
/// (docs/design/017). Without a communicator, this process stands for all devices and gets the
/// same bits. Not thread-safe; lists of several batches may be alive at a time.
class TrainingExchange {
 public:
  /// `index` and the groups must outlive it. `movement` may be null: FSMoE's. Throws kBadInput if
  /// the expert group's size is not the number of devices.
  TrainingExchange(const PlacementIndex& index, ExchangeOptions options, RankGroups groups,
                   std::string where, const kernels::Execution& execution = {},
                   std::shared_ptr<RowMovement> movement = {});

  [[nodiscard]] std::span<const std::int32_t> local_devices() const { return local_devices_; }
  [[nodiscard]] const ExchangeOptions& options() const { return options_; }
  /// Type of sums of rows of a type: fp64 for fp64, else the option's partial_type.
  [[nodiscard]] kernels::DType sum_type(kernels::DType row_type) const;

  /// Agrees with the other ranks on who sends what. `routing.weights` is not read; `weights` [T, k]
  /// without gaps, fp32 or fp64 (then rows must be fp64 too), are those of the picks.
  /// `source_offsets` [sources + 1], without a communicator only: tokens [o[s], o[s + 1]) count as
  /// those of rank s in the order of sums; empty: all are one rank's.
  /// Throws kBadInput for a routing that breaks its promises, kPeer if ranks disagree.
  std::shared_ptr<const TrainingLists> make_lists(
      const TokenRouting& routing, kernels::ConstMatrixView weights,
      std::span<const std::int64_t> source_offsets = {});

  /// Sends the chunk's rows of `at_home` [T, H] to the devices, behind what `arrived` has. Without
  /// a communicator and without hooks nothing is copied: then at_home must outlive `arrived`.
  void dispatch(const Journey& journey, std::int64_t chunk, kernels::ConstMatrixView at_home,
                ArrivedRows& arrived);
  /// Makes a chunk the one under way without moving rows, for sums of rows of `columns` elements of
  /// `row_type`: for a combine that does not follow its dispatch at once. Dispatch does it too.
  void begin_chunk(const Journey& journey, std::int64_t chunk, std::int64_t columns,
                   kernels::DType row_type) {
    begin_trip(journey, chunk, columns, row_type, current_);
  }
  /// Where the chunk under way puts its sums on local device number `i`, without inputs.
  [[nodiscard]] ChunkRows chunk_rows(std::size_t i) const {
    return {current_.rows_of_device.at(i), {}, {}, current_.sums, current_.sum_at.at(i)};
  }
  /// The chunk under way, on local device number `i`; valid until the next dispatch.
  [[nodiscard]] ChunkRows work(std::size_t i, const ArrivedRows& arrived) const {
    return work(i, arrived, current_);
  }
  /// Brings its sums home: writes the rows of at_home [T, H] whose tokens are in the chunk.
  void combine(const Journey& journey, std::int64_t chunk, kernels::MatrixView at_home);

  void begin_trip(const Journey& journey, std::int64_t chunk, std::int64_t columns,
                  kernels::DType row_type, ChunkTrip& trip) const;
  /// Gives each trip its place in `arrived`, one behind the other.
  void make_room(const Journey& journey, std::span<ChunkTrip* const> trips,
                 kernels::ConstMatrixView at_home, ArrivedRows& arrived) const;
  void send_out(const Journey& journey, kernels::ConstMatrixView at_home, ArrivedRows& arrived,
                ChunkTrip& trip) const;
  void gather_in(const Journey& journey, kernels::ConstMatrixView at_home, ArrivedRows& arrived,
                 ChunkTrip& trip) const;
  [[nodiscard]] ChunkRows work(std::size_t i, const ArrivedRows& arrived,
                               const ChunkTrip& trip) const;
  void scatter_sums(const Journey& journey, ChunkTrip& trip) const;
  void bring_home(const Journey& journey, kernels::MatrixView at_home, ChunkTrip& trip) const;
  [[nodiscard]] bool has_groups() const { return groups_.expert != nullptr; }
  [[nodiscard]] const RankGroups& groups() const { return groups_; }

  /// dL/dw of each entry [local devices][entries] to dL/dw of each pick [T, k]; 0 where there is
  /// none. All of the type of the weights. Sums over shards.
  void return_weight_gradients(const TrainingLists& lists, std::span<const Scalars> by_device,
                               kernels::MatrixView grad_weights);

 private:
  struct Announcement;
  void announce(TrainingLists& lists, Announcement& announcement);
  void make_device_lists(TrainingLists& lists, const Announcement& announcement);
  void make_virtual_lists(TrainingLists& lists) const;
  void fill_rows_out(const TrainingLists& lists, const kernels::ConstMatrixView& at_home,
                     ChunkTrip& trip) const;
  kernels::ConstMatrixView call_hook(const Journey& journey, const ChunkTrip& trip,
                                     RowHookPlace place,
                                     const kernels::ConstMatrixView& rows) const;

  const PlacementIndex& index_;
  ExchangeOptions options_;
  RankGroups groups_;
  std::string where_;
  kernels::Execution execution_;
  std::shared_ptr<RowMovement> movement_;
  std::vector<std::int32_t> local_devices_;

  ChunkTrip current_;  // the chunk under way, where one follows the other
};

}  // namespace coterie::exchange
