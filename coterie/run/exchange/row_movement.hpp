// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::exchange {

/// The groups of a rank. Device d of a placement is rank d of `expert`; each device's experts are
/// cut along their inner width over the ranks of `shard`. Every rank of a shard group has the same
/// rank in its expert group, and the reverse.
struct RankGroups {
  comm::Communicator* expert = nullptr;  ///< null: this process stands for all devices
  comm::Communicator* shard = nullptr;   ///< null: experts are whole

  [[nodiscard]] int num_shards() const { return shard == nullptr ? 1 : shard->size(); }
  [[nodiscard]] int shard_rank() const { return shard == nullptr ? 0 : shard->rank(); }
  [[nodiscard]] int num_devices() const { return expert == nullptr ? 1 : expert->size(); }
  /// Ranks whose tokens reach this one.
  [[nodiscard]] int num_sources() const { return num_shards() * num_devices(); }
};

/// How many rows move between this rank and the others.
struct MovedRows {
  std::vector<std::int64_t> to;  ///< [devices] rows that this rank has for each device
  /// [shards * devices] rows that the device gets: for each rank of the shard group in order, what
  /// comes to it from each rank of its expert group in order.
  std::vector<std::int64_t> from;
  std::int64_t columns = 0;
  kernels::DType type = kernels::DType::kFloat32;

  [[nodiscard]] std::int64_t row_bytes() const { return columns * kernels::size_of(type); }
};

/// Moves rows out to devices and sums back home: what a user may swap for another algorithm, as
/// long as the same bytes arrive. Every rank makes the same calls in the same order, whatever the
/// sizes.
///
/// A journey has two steps each way, so that a schedule can run the one between nodes beside the
/// one inside a node. They may be called by two threads at a time, one for `exchange_*` and one for
/// `gather` and `scatter`. Who does not cut its journeys leaves the steps as they are: then all of
/// it is the step between nodes.
class RowMovement {
 public:
  virtual ~RowMovement() = default;
  /// `out` [sum of to] rows, device by device; `in` [sum of from] rows.
  virtual void to_devices(const MovedRows& moved, std::span<const std::byte> out,
                          std::span<std::byte> in, comm::Purpose purpose) = 0;
  /// The way back: `in` [sum of from] rows that this rank computed from its shard; `out` [sum of
  /// to] rows, each the sum over the shards. May spoil `in`.
  virtual void to_homes(const MovedRows& moved, std::span<std::byte> in, std::span<std::byte> out,
                        comm::Purpose purpose) = 0;

  /// First step out (D): fills this rank's part of `in`.
  virtual void exchange_out(const MovedRows& moved, std::span<const std::byte> out,
                            std::span<std::byte> in, comm::Purpose purpose) {
    to_devices(moved, out, in, purpose);
  }
  /// Second step out (AG): completes `in`.
  virtual void gather(const MovedRows& /*moved*/, std::span<std::byte> /*in*/,
                      comm::Purpose /*purpose*/) {}
  /// First step home (RS): sums over shards, in place.
  virtual void scatter(const MovedRows& /*moved*/, std::span<std::byte> /*in*/,
                       comm::Purpose /*purpose*/) {}
  /// Second step home (C): `in` after scatter.
  virtual void exchange_home(const MovedRows& moved, std::span<std::byte> in,
                             std::span<std::byte> out, comm::Purpose purpose) {
    to_homes(moved, in, out, purpose);
  }
};

/// FSMoE's data movement: all-to-all in the expert group, then all-gather in the shard group; back
/// by reduce-scatter in the shard group, then all-to-all in the expert group. Rows are ragged:
/// nothing is padded. Sums over shards run in the order of the shard group's ranks, in fp32 for
/// fp32 and bf16 rows and in fp64 for fp64. One all-gather is a broadcast a member.
class GroupMovement final : public RowMovement {
 public:
  /// The communicators must outlive it; `groups.expert` is not null.
  explicit GroupMovement(const RankGroups& groups);
  void to_devices(const MovedRows& moved, std::span<const std::byte> out, std::span<std::byte> in,
                  comm::Purpose purpose) override;
  void to_homes(const MovedRows& moved, std::span<std::byte> in, std::span<std::byte> out,
                comm::Purpose purpose) override;
  void exchange_out(const MovedRows& moved, std::span<const std::byte> out, std::span<std::byte> in,
                    comm::Purpose purpose) override;
  void gather(const MovedRows& moved, std::span<std::byte> in, comm::Purpose purpose) override;
  void scatter(const MovedRows& moved, std::span<std::byte> in, comm::Purpose purpose) override;
  void exchange_home(const MovedRows& moved, std::span<std::byte> in, std::span<std::byte> out,
                     comm::Purpose purpose) override;

 private:
  RankGroups groups_;
  std::vector<std::byte> received_;
};

/// Completes `all`, which holds this rank's `bytes[rank]` bytes at their place, by the others'.
void gather_ragged(comm::Communicator& group, std::span<const std::int64_t> bytes,
                   std::span<std::byte> all, comm::Purpose purpose);

}  // namespace coterie::exchange
