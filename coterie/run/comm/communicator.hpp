// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace coterie::comm {

/// What bytes are sent for; the traffic counter keeps them apart.
enum class Purpose : std::uint8_t { kControl, kMetadata, kDispatch, kCombine, kGradient };
inline constexpr std::size_t kNumPurposes = 5;

/// Bytes that left this rank for other ranks (what a rank keeps for itself is not counted).
struct Traffic {
  std::array<std::uint64_t, kNumPurposes> bytes_sent{};
  std::uint64_t num_collectives = 0;

  [[nodiscard]] std::uint64_t sent_for(Purpose purpose) const {
    return bytes_sent[static_cast<std::size_t>(purpose)];
  }
  bool operator==(const Traffic&) const = default;
};

/// A group of ranks that exchange bytes. One rank calls from one thread at a time; every rank of
/// the group must make the same calls in the same order, whatever its data (zero sizes included).
/// Every wait has a limit; a rank that does not answer in time ends the call on the others with
/// ErrorCode::kPeer, naming the rank where it is known. Buffers must not overlap and must stay
/// alive until the call returns.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// What carries the bytes: "single", "fake", "mpi", "nccl", ...
  [[nodiscard]] virtual std::string name() const = 0;

  /// Rank r gets this rank's bytes [sum(send_bytes[0..r)), ...) and this rank gets from r
  /// `receive_bytes[r]` bytes, placed in rank order. Both sides must agree on each size.
  virtual void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                          std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes,
                          Purpose purpose) = 0;
  /// Every rank gives `send`, all of one size; `receive` holds them in rank order.
  virtual void all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                          Purpose purpose) = 0;
  /// `data` of rank `root` reaches every rank.
  virtual void broadcast(std::span<std::byte> data, int root, Purpose purpose) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;
  /// This rank gives up: calls that wait on other ranks, and all later ones, end there with
  /// ErrorCode::kPeer 'aborted by rank r: message'. Call it before leaving on an error. May be
  /// called from any thread.
  virtual void abort(const std::string& message) noexcept = 0;

  /// Cuts the group: ranks that give the same `color` (>= 0) form a smaller one, numbered by their
  /// rank here. Every rank of this group calls it, as any collective. The part must go before this
  /// group does; no message of the one meets the other's, so ranks of a part must agree on the
  /// order of their calls among themselves only, but two groups that wait on each other crosswise
  /// hang until the limit. A failure in one part, or abort() on any, ends this group and all its
  /// parts; messages name ranks by their number in the outermost group. A part counts its own
  /// traffic; this group's does not contain it.
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int color) = 0;

  [[nodiscard]] virtual const Traffic& traffic() const = 0;
  virtual void reset_traffic() = 0;
};

}  // namespace coterie::comm
