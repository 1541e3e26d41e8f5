// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace coterie::comm {

/// What our own c10d backends can do beyond c10d's interface.
class Abortable {
 public:
  virtual ~Abortable() = default;
  /// See Communicator::abort.
  virtual void abort_group(const std::string& message) noexcept = 0;
  /// Waits until every rank of the group is here too, then lets go of it.
  virtual void close_group(std::chrono::milliseconds timeout) = 0;
};

}  // namespace coterie::comm
