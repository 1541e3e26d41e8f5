// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "coterie/plan/schedule/schedule.hpp"
#include "coterie/run/gradients/gradient_queue.hpp"

namespace coterie::gradients {

/// Carries out a partition of a backward pass's dense gradients (plan/schedule's
/// gradient_partition): some beside each dense part, some in each MoE part, the rest at the end.
/// Layers in backward order:
///
///     sender.begin_pass();
///     for each layer:  sender.begin_moe(l);  layer backward, in whose gaps sender.send_moe() runs
///                      sender.begin_dense(); backward of the dense part; sender.end_dense();
///                      sender.add(...) its gradients
///     sender.end_pass();
///
/// What is sent when follows from the order of these calls and the sizes, not from timing, so every
/// rank makes the same collectives. After end_pass every gradient is summed, whatever was planned,
/// with the bits of one all-reduce a tensor. One thread makes the calls, except send_moe, which any
/// thread may make between begin_moe and begin_dense.
class GradientSender {
 public:
  /// `group`: the copies of the dense parts; only the sender uses it during a pass, and it must
  /// outlive the sender.
  explicit GradientSender(comm::Communicator& group) : group_(group) {}
  ~GradientSender();
  GradientSender(const GradientSender&) = delete;
  GradientSender& operator=(const GradientSender&) = delete;

  /// From the next pass on. kBadInput if its two lists differ in length.
  void set_partition(schedule::GradientPartition partition);

  void begin_pass();
  void add(const parallel::Numbers& gradient) { queue_.add(gradient); }
  /// Takes the partition's share of the layer's MoE part out of the queue.
  void begin_moe(std::int32_t layer);
  /// Sums it, once; a plan without a gap leaves it to the dense part.
  void send_moe();
  /// Starts to sum the share of the dense part, in a thread of its own.
  void begin_dense(std::int32_t layer);
  /// Waits for it; throws what it threw.
  void end_dense();
  void end_pass();

  /// Bytes summed in the last pass: in MoE parts, beside dense parts, at the end.
  struct Sent {
    double moe = 0;
    double dense = 0;
    double last = 0;

    bool operator==(const Sent&) const = default;
  };
  [[nodiscard]] const Sent& sent() const { return sent_; }

 private:
  void sum(std::vector<GradientPiece>& pieces, double& counter);
  [[nodiscard]] static double share_of(const std::vector<double>& bytes, std::int32_t layer);

  comm::Communicator& group_;
  schedule::GradientPartition partition_;
  GradientQueue queue_;
  std::vector<GradientPiece> moe_;
  std::vector<GradientPiece> dense_;
  std::future<void> window_;
  Sent sent_;
};

}  // namespace coterie::gradients
