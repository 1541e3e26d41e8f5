// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>

#include "coterie/run/comm/communicator.hpp"

namespace coterie::comm {

/// Our face over any c10d backend that moves CPU tensors.
class C10dCommunicator final : public Communicator {
 public:
  /// `is_part`: of a larger group, which says goodbye for its parts.
  C10dCommunicator(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
                   bool is_part = false);
  /// Leaves the group: waits until every rank is here. After a failure, or while an exception
  /// passes by, it does not wait.
  ~C10dCommunicator() override;

  [[nodiscard]] int rank() const override { return backend_->getRank(); }
  [[nodiscard]] int size() const override { return backend_->getSize(); }
  [[nodiscard]] std::string name() const override { return backend_->getBackendName(); }

  void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes,
                  Purpose purpose) override;
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                  Purpose purpose) override;
  void broadcast(std::span<std::byte> data, int root, Purpose purpose) override;
  void barrier() override;
  void abort(const std::string& message) noexcept override;
  [[nodiscard]] std::unique_ptr<Communicator> split(int color) override;

  [[nodiscard]] const Traffic& traffic() const override { return traffic_; }
  void reset_traffic() override { traffic_ = {}; }

 private:
  template <typename Start>
  void finish(const Start& start);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::chrono::milliseconds timeout_;
  bool is_part_;
  Traffic traffic_;
  std::atomic<bool> has_failed_ = false;
};

}  // namespace coterie::comm
