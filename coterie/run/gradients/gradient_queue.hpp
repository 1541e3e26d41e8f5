// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "coterie/run/comm/comm.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::gradients {

/// A stretch of gradients that is summed in one go: neighbours in the queue, of one type.
class GradientPiece {
 public:
  [[nodiscard]] double bytes() const;
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  /// Every element becomes its sum over the ranks of `group`, in rank order (collective: every rank
  /// has a piece of the same size at the same place).
  void sum(comm::Communicator& group);

 private:
  friend class GradientQueue;
  std::vector<parallel::Numbers> parts_;
  std::vector<std::byte> packed_;
};

/// Gradients that are complete on this rank but not yet summed over ranks, first in first out. Cuts
/// fall between elements, anywhere in a tensor: each element is summed by itself, in rank order, so
/// no cut changes a bit. Not thread-safe.
class GradientQueue {
 public:
  /// Memory of the caller, untouched by it until it was summed.
  void add(const parallel::Numbers& gradient);
  /// Takes about `bytes` from the front, to the next whole element: one piece for each change of
  /// type.
  std::vector<GradientPiece> take(double bytes);
  [[nodiscard]] double bytes() const { return static_cast<double>(bytes_); }

 private:
  std::deque<parallel::Numbers> waiting_;
  std::int64_t bytes_ = 0;
};

}  // namespace coterie::gradients
