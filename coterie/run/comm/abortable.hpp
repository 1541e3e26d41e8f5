// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <string>

namespace coterie::comm {

/// What our own c10d backends can do beyond c10d's interface.
class Abortable {
 public:
  virtual ~Abortable() = default;
  /// See Communicator::abort.
  virtual void abort_group(const std::string& message) noexcept = 0;
  /// Waits until every rank of the group is here too, then lets go of it. Not for parts.
  virtual void close_group(std::chrono::milliseconds timeout) = 0;
  /// See Communicator::split; the part is Abortable too.
  virtual c10::intrusive_ptr<c10d::Backend> split_group(int color,
                                                        std::chrono::milliseconds timeout) = 0;
};

}  // namespace coterie::comm
