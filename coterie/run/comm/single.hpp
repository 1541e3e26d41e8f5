// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "coterie/run/comm/communicator.hpp"

namespace coterie::comm {

/// A group of one rank: every call copies within this process and sends nothing.
class SingleCommunicator final : public Communicator {
 public:
  /// `on_abort` hears abort(): a part of one rank tells the group that it was cut from.
  explicit SingleCommunicator(std::function<void(const std::string&)> on_abort = {})
      : on_abort_(std::move(on_abort)) {}

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::string name() const override { return "single"; }

  void all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes,
                  Purpose purpose) override;
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive,
                  Purpose purpose) override;
  void broadcast(std::span<std::byte> data, int root, Purpose purpose) override;
  void barrier() override { ++traffic_.num_collectives; }
  void abort(const std::string& message) noexcept override;
  [[nodiscard]] std::unique_ptr<Communicator> split(int color) override;

  [[nodiscard]] const Traffic& traffic() const override { return traffic_; }
  void reset_traffic() override { traffic_ = {}; }

 private:
  std::function<void(const std::string&)> on_abort_;
  Traffic traffic_;
};

}  // namespace coterie::comm
